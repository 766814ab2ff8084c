"""Types and handlers of the older generation for the workspace of a conversation."""

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
    """Which directory of the workspace to list; nothing stands for all of it."""

    path: Path = ""
    """Directory, relative to the workspace; empty: the workspace itself"""


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file of the workspace to read."""

    file: Path
    """File, relative to the workspace, at most 4096 characters"""


class DiffQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file of the workspace to compare."""

    path: Path
    """File, relative to the workspace, at most 4096 characters"""


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """Files to write, each a part of the form with a file name."""

    files: Annotated[
        list[
            Annotated[str, Meta(extra_json_schema={"contentMediaType": "application/octet-stream"})]
        ],
        Meta(min_length=1),
    ]
    """The files, each a part of the form named `files` with a file name"""


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The text of a file."""

    code: str
    """Text of the file"""


class Uploaded(msgspec.Struct, frozen=True, kw_only=True):
    """Where files were written, and which were not."""

    uploaded_files: list[str]
    """Absolute paths of the files that were written"""
    skipped_files: list[Skipped]
    """Files that were not written"""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A file that differs: modified, added, deleted or renamed."""

    status: str
    """`M` modified, `A` added, `D` deleted, `R` renamed"""
    path: str
    """The file, relative to the workspace"""


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is and as it was."""

    modified: str
    """Text of the file as it is; empty if it is deleted"""
    original: str
    """Text of the file as it was; empty if it is new"""


class VscodeUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where the editor of a sandbox is, if it has one."""

    vscode_url: str | None
    """URL of the editor with its key in it; null if there is none, or the sandbox does not run"""


class WebHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Where what an agent serves can be seen, and on which port it has to listen."""

    hosts: dict[str, int]
    """Port inside the sandbox by the URL at which it is seen; empty unless the sandbox runs"""


class Microagent(msgspec.Struct, frozen=True, kw_only=True):
    """Something the agent has learned, and the words that call for it."""

    name: str
    """Name of the skill"""
    type: str
    """`repo` is always told to the agent, `knowledge` when one of its triggers is said"""
    content: str
    """Text of the skill, in Markdown"""
    triggers: list[str] = []
    """Words in a message that call for the skill"""
    inputs: list[Any] = []
    """Always empty"""
    tools: list[str] = []
    """Always empty"""


class Microagents(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent of a conversation has learned."""

    microagents: list[Microagent]
    """The skills"""


def from_skills(skills: list[dict[str, Any]]) -> Microagents:
    """Return what an agent has learned as it is shown."""
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
"""What is raised for a body that is no form."""

ROUTES: Final = Routes("/api/conversations/{conversation_id}", errors=(BadRequest, *OF_AGENTS))


@ROUTES.add("GET", "/list-files")
async def get_list(request: web.Request, query: ListQuery) -> list[str]:
    """List a directory of the workspace.

    Names in the directory, relative to the workspace: directories first, with a slash behind. What
    git ignores is left out. Not found (404) unless the sandbox runs.
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

    Refused (415) for a file that is no text. Not found (404) unless the sandbox runs.
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
    """Write files into the workspace.

    A file of the same name is replaced. What cannot be written is told in `skipped_files`.
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

    Refused (409) where the files are too many or too large.
    """
    with error_member():
        packed = await (await _workspace(request)).pack()
    headers = {"Content-Disposition": 'attachment; filename="workspace.zip"'}
    return web.Response(body=packed, content_type="application/zip", headers=headers)


@ROUTES.add("GET", "/git/changes")
async def get_changes(request: web.Request) -> list[Change]:
    """List the files that differ from the remote branch.

    Compared with the remote branch, else with the last commit.
    """
    view = await get_view(request)
    with error_member():
        found = await _agent(request, view).git_changes(view.conversation.working_dir)
        return [Change(status=_STATUSES.get(one.status, "M"), path=one.path) for one in found]


@ROUTES.add("GET", "/git/diff", example={"path": "README.md"})
async def get_diff(request: web.Request, query: DiffQuery) -> Diff:
    """Return a file as it is and as it was.

    The other side is the file in the remote branch, else in the last commit.
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
    """Tell where the editor of the sandbox is.

    The URL goes through this server.
    """
    view = await get_view(request)
    folder, links = view.conversation.working_dir, links_of(request)
    return VscodeUrl(vscode_url=links.editor(view.sandbox, folder) if view.sandbox else None)


@ROUTES.add("GET", "/web-hosts", errors=(BadRequest,))
async def get_web_hosts(request: web.Request) -> WebHosts:
    """Tell where what the agent serves can be seen.

    The URLs go through this server.
    """
    view, links = await get_view(request), links_of(request)
    sandbox = view.sandbox if view.agent_url else None
    if sandbox is None:
        return WebHosts(hosts={})
    workers = [end for end in sandbox.endpoints if end.name.startswith(_WORKER)]
    return WebHosts(hosts={links.worker(sandbox, end.name): end.port for end in workers})


@ROUTES.add("GET", "/microagents")
async def get_microagents(request: web.Request) -> Microagents:
    """List what the agent has learned.

    Those of the repository, of the user and published ones.
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
    """Yield the name and the content of each file of a form; raises if it is none."""
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
