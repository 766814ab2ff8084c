"""Wire structs and handlers of V0 for the workspace of a conversation."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError
from msgspec import Meta

from agentsvc.agentserver import AgentServer
from agentsvc.base import (
    BadRequest,
    BodyTooLarge,
    Conflict,
    InvalidRequest,
    MalformedBody,
    NotFound,
    UnsupportedMediaType,
)
from agentsvc.conversations import ConversationView
from agentsvc.http.keys import CONFIG, CONVERSATIONS
from agentsvc.http.routes import MULTIPART, OF_AGENTS, ZIP, Routes
from agentsvc.http.urls import links_of
from agentsvc.http.v0.conversations import get_view
from agentsvc.http.v0.workspaces import Skipped, WorkspaceFiles
from agentsvc.http.wire import error_member

type Path = Annotated[str, Meta(max_length=4096)]

_STATUSES: Final = {"MOVED": "R", "ADDED": "A", "DELETED": "D", "UPDATED": "M"}
_WORKER: Final = "worker"


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the files of a directory."""

    path: Path = ""
    """Directory, relative to the workspace; empty: the workspace itself"""


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the text of a file."""

    file: Path
    """Path of the file, relative to the workspace, at most 4096 characters"""


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the diff of a file."""

    path: Path
    """Path of the file, relative to the workspace, at most 4096 characters"""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """Multipart form with the files to write."""

    files: Annotated[
        list[
            Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
        ],
        Meta(min_length=1),
    ]
    """The files, each in a form part with the name `files` and a file name"""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file."""

    code: str
    """Text of the file"""


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an upload: written and skipped files."""

    uploaded_files: list[str]
    """Absolute paths of the files that were written"""
    skipped_files: list[Skipped]
    """Files that were not written, with the reasons"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A changed file."""

    status: str
    """Kind of the change: `M` modified, `A` added, `D` deleted, `R` renamed"""
    path: str
    """Path of the file, relative to the workspace"""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """A file in its present and its original state."""

    modified: str
    """Present text of the file; empty if it was deleted"""
    original: str
    """Original text of the file; empty if it is new"""


class VscodeUrl(msgspec.Struct, frozen=True, kw_only=True):
    """URL of the editor of a sandbox."""

    vscode_url: str | None
    """URL of the editor, including its key; null without an editor, or if the sandbox is not
    running"""


class WebHosts(msgspec.Struct, frozen=True, kw_only=True):
    """The work ports of a sandbox, on which the agent can serve web pages."""

    hosts: dict[str, int]
    """Ports inside the sandbox by the URLs at which they are served; empty unless the sandbox is
    running"""


class Microagent(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of the agent (called microagent in V0)."""

    name: str
    """Name of the skill"""
    type: str
    """When the agent gets the skill: `repo` always, `knowledge` if a message has one of its
    triggers"""
    content: str
    """Text of the skill, in Markdown"""
    triggers: list[str] = []
    """Words in a message that trigger the skill"""
    inputs: list[Any] = []
    """Always empty"""
    tools: list[str] = []
    """Always empty"""


class Microagents(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of the agent of a conversation."""

    microagents: list[Microagent]
    """The skills"""


def from_skills(skills: list[dict[str, Any]]) -> Microagents:
    """Convert the agent server's list of skills to its wire struct."""
    found = [
        Microagent(
            name=str(skill.get("name") or ""),
            type=str(skill.get("type") or ""),
            content=str(skill.get("content") or ""),
            triggers=[str(word) for word in words]
            if isinstance(words := skill.get("triggers"), list)
            else [],
        )
        for skill in skills
    ]
    return Microagents(microagents=found)


NOT_RUNNING: Final = "Runtime not yet initialized"
_FIELD: Final = "files"
_CHUNK_BYTES: Final = 64 * 1024
_UNREADABLE: Final = (
    AssertionError,
    HttpProcessingError,
    RuntimeError,
    ValueError,
    web.RequestPayloadError,
)
"""Exceptions of aiohttp for a malformed form."""

ROUTES: Final = Routes("/api/conversations/{conversation_id}", errors=(BadRequest, *OF_AGENTS))


@ROUTES.add("GET", "/list-files")
async def get_list(request: web.Request, query: ListQuery) -> list[str]:
    """List a directory of the workspace.

    Paths relative to the workspace: directories first, with a trailing slash. Files ignored by git
    are omitted. Not found (404) unless the sandbox is running.
    """
    with error_member():
        return await (await _workspace(request)).list_files(query.path)


@ROUTES.add(
    "GET",
    "/select-file",
    errors=(BadRequest, BodyTooLarge, UnsupportedMediaType, *OF_AGENTS),
    example={"file": "README.md"},
)
async def get_file(request: web.Request, query: FileQuery) -> Code:
    """Read a text file of the workspace.

    Refused (415) for a binary file. Not found (404) unless the sandbox is running.
    """
    with error_member():
        return Code(code=await (await _workspace(request)).read_text(query.file))


@ROUTES.add(
    "POST",
    "/upload-files",
    body=Upload,
    reads=(MULTIPART,),
    example={"files": ["some text"]},
    is_stream=True,
)
async def post_files(request: web.Request) -> Uploaded:
    """Upload files to the workspace.

    Replaces files of the same name. Files that cannot be written are listed in `skipped_files`.
    """
    workspace = await _workspace(request)
    written: list[str] = []
    skipped: list[Skipped] = []
    async for name, part in _files(request):
        result = await workspace.write(name, part)
        written.append(result) if isinstance(result, str) else skipped.append(result)
    if not written and not skipped:
        raise InvalidRequest("Field required", loc=("body", _FIELD), kind="missing")
    return Uploaded(uploaded_files=written, skipped_files=skipped)


@ROUTES.add(
    "GET",
    "/zip-directory",
    bytes,
    media=ZIP,
    errors=(BadRequest, BodyTooLarge, *OF_AGENTS),
    is_stream=True,
)
async def get_zip(request: web.Request) -> web.Response:
    """Download the workspace as a zip file.

    Refused (409) if there are too many files or they are too large.
    """
    with error_member():
        packed = await (await _workspace(request)).pack()
    headers = {"Content-Disposition": 'attachment; filename="workspace.zip"'}
    return web.Response(body=packed, content_type="application/zip", headers=headers)


@ROUTES.add("GET", "/git/changes")
async def get_changes(request: web.Request) -> list[Change]:
    """List the files that differ from the remote branch.

    Without a remote branch, from the last commit.
    """
    view = await get_view(request)
    with error_member():
        found = await _agent(request, view).git_changes(view.conversation.working_dir)
        return [Change(status=_STATUSES.get(one.status, "M"), path=one.path) for one in found]


@ROUTES.add("GET", "/git/diff", example={"path": "README.md"})
async def get_diff(request: web.Request, query: DiffQuery) -> Diff:
    """Get the present and the original text of a file.

    The original is the file of the remote branch, or of the last commit if there is none.
    """
    with error_member():
        view = await get_view(request)
        agent = _agent(request, view)
        place = WorkspaceFiles(agent, view.conversation.working_dir).locate(query.path)
        try:
            diff = await agent.git_diff(place)
        except BadRequest as exc:
            raise BadRequest(f"Error getting diff: {query.path}", detail=exc.detail) from exc
    return Diff(modified=diff.modified or "", original=diff.original or "")


@ROUTES.add("GET", "/vscode-url", errors=(BadRequest,))
async def get_vscode_url(request: web.Request) -> VscodeUrl:
    """Get the URL of the sandbox's editor.

    The URL is proxied by this server.
    """
    view = await get_view(request)
    folder, links = view.conversation.working_dir, links_of(request)
    return VscodeUrl(vscode_url=links.editor(view.sandbox, folder) if view.sandbox else None)


@ROUTES.add("GET", "/web-hosts", errors=(BadRequest,))
async def get_web_hosts(request: web.Request) -> WebHosts:
    """Get the URLs of the sandbox's work ports, on which the agent can serve web pages.

    The URLs are proxied by this server.
    """
    view, links = await get_view(request), links_of(request)
    sandbox = view.sandbox if view.agent_url else None
    if sandbox is None:
        return WebHosts(hosts={})
    workers = [end for end in sandbox.endpoints if end.name.startswith(_WORKER)]
    return WebHosts(hosts={links.worker(sandbox, end.name): end.port for end in workers})


@ROUTES.add("GET", "/microagents")
async def get_microagents(request: web.Request) -> Microagents:
    """List the skills of the agent.

    Skills of the repository, of the user, and public skills if the server is configured to load
    them.
    """
    view = await get_view(request)
    load_public = request.app[CONFIG].conversations.public_skills
    with error_member():
        agent, root = _agent(request, view), view.conversation.working_dir
        return from_skills(await agent.load_skills(root, load_public=load_public))


async def _workspace(request: web.Request) -> WorkspaceFiles:
    view = await get_view(request)
    return WorkspaceFiles(_agent(request, view), view.conversation.working_dir)


def _agent(request: web.Request, view: ConversationView) -> AgentServer:
    try:
        return request.app[CONVERSATIONS].require_agent(view)
    except Conflict as exc:
        raise NotFound(NOT_RUNNING, detail=exc.message, extra={"error": NOT_RUNNING}) from exc


async def _files(request: web.Request) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
    """Yield the name and content of each file of a form; raises for a body that is not a form."""
    if request.content_type != "multipart/form-data":
        raise UnsupportedMediaType("The body should be `multipart/form-data`")
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if not isinstance(part, BodyPartReader):
                raise MalformedBody("The form has another form in it")
            if part.name == _FIELD:
                yield part.filename or "", _chunks(part)
    except _UNREADABLE as exc:
        raise MalformedBody("The body is not what its headers say", detail=str(exc)) from exc


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        yield chunk
