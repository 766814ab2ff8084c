"""Handlers of the older generation for the workspace of a conversation."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import BodyPartReader, web

from agentsvc.agentserver import AgentServer
from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    BodyTooLarge,
    Conflict,
    InvalidRequest,
    MalformedBody,
    NotFound,
    UnsupportedMediaType,
)
from agentsvc.http.keys import CONFIG, CONVERSATIONS, PRINCIPAL
from agentsvc.http.routes import MULTIPART, OF_AGENTS, ZIP, Routes
from agentsvc.http.urls import links_of
from agentsvc.http.v0.conversations import get_view
from agentsvc.http.v0.types_files import (
    Change,
    Code,
    Diff,
    DiffQuery,
    FileQuery,
    ListQuery,
    Microagents,
    Upload,
    Uploaded,
    VscodeUrl,
    WebHosts,
    from_changes,
    from_diff,
    from_skills,
    vscode_of,
    web_hosts_of,
)
from agentsvc.http.v0.workspaces import Skipped, Workspace
from agentsvc.http.wire import json_response

PREFIX: Final = "/api/conversations/{conversation_id}"
NOT_RUNNING: Final = "Runtime not yet initialized"
_FIELD: Final = "files"
_CHUNK_BYTES: Final = 64 * 1024

ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/list-files", errors=(BadRequest, *OF_AGENTS))
async def get_list(request: web.Request, query: ListQuery) -> list[str]:
    """List a directory of the workspace.

    Names in the directory, relative to the workspace: directories first, with a slash behind. What
    git ignores is left out. Not found (404) unless the sandbox runs.
    """
    path = query.path
    with _error_member():
        return await (await _workspace(request)).list_files(path)


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
    path = query.file
    with _error_member():
        return Code(code=await (await _workspace(request)).read_text(path))


@ROUTES.add(
    "POST",
    "/upload-files",
    Uploaded,
    body=Upload,
    reads=(MULTIPART,),
    errors=(BadRequest, *OF_AGENTS),
    example={"files": ["some text"]},
    is_stream=True,
)
async def post_files(request: web.Request) -> web.Response:
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
    return json_response(Uploaded(uploaded_files=written, skipped_files=skipped))


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
    with _error_member():
        packed = await (await _workspace(request)).pack()
    headers = {"Content-Disposition": 'attachment; filename="workspace.zip"'}
    return web.Response(body=packed, content_type="application/zip", headers=headers)


@ROUTES.add("GET", "/git/changes", errors=(BadRequest, *OF_AGENTS))
async def get_changes(request: web.Request) -> list[Change]:
    """List the files that differ from the remote branch.

    Compared with the remote branch, else with the last commit.
    """
    root = (await get_view(request)).conversation.working_dir
    with _error_member():
        agent = await _agent(request)
        return from_changes(await agent.git_changes(root))


@ROUTES.add("GET", "/git/diff", errors=(BadRequest, *OF_AGENTS), example={"path": "README.md"})
async def get_diff(request: web.Request, query: DiffQuery) -> Diff:
    """Return a file as it is and as it was.

    The other side is the file in the remote branch, else in the last commit.
    """
    path = query.path
    with _error_member():
        place = (await _workspace(request)).locate(path)
        try:
            diff = await (await _agent(request)).git_diff(place)
        except BadRequest as exc:
            raise BadRequest(f"Error getting diff: {path}", detail=exc.detail) from exc
    return from_diff(diff)


@ROUTES.add("GET", "/vscode-url", errors=(BadRequest,))
async def get_vscode_url(request: web.Request) -> VscodeUrl:
    """Tell where the editor of the sandbox is.

    The URL goes through this server.
    """
    return vscode_of(await get_view(request), links_of(request))


@ROUTES.add("GET", "/web-hosts", errors=(BadRequest,))
async def get_web_hosts(request: web.Request) -> WebHosts:
    """Tell where what the agent serves can be seen.

    The URLs go through this server.
    """
    return web_hosts_of(await get_view(request), links_of(request))


@ROUTES.add("GET", "/microagents", errors=(BadRequest, *OF_AGENTS))
async def get_microagents(request: web.Request) -> Microagents:
    """List what the agent has learned.

    Those of the repository, of the user and published ones.
    """
    root = (await get_view(request)).conversation.working_dir
    load_public = request.app[CONFIG].conversations.public_skills
    with _error_member():
        agent = await _agent(request)
        return from_skills(await agent.load_skills(root, load_public=load_public))


async def _workspace(request: web.Request) -> Workspace:
    conversation = (await get_view(request)).conversation
    return Workspace(await _agent(request), conversation.working_dir)


async def _agent(request: web.Request) -> AgentServer:
    conversation = (await get_view(request)).conversation
    try:
        return await request.app[CONVERSATIONS].agent(request[PRINCIPAL].user_id, conversation.id)
    except Conflict as exc:
        raise NotFound(NOT_RUNNING, detail=exc.message, extra={"error": NOT_RUNNING}) from exc


async def _files(request: web.Request) -> AsyncIterator[tuple[str, AsyncIterator[bytes]]]:
    """Yield the name and the content of each file of a form; raises if it is none."""
    if request.content_type != "multipart/form-data":
        raise UnsupportedMediaType("The body should be `multipart/form-data`")
    try:
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            if isinstance(part, BodyPartReader) and part.name == _FIELD:
                yield part.filename or "", _chunks(part)
    except (ValueError, AssertionError, web.RequestPayloadError) as exc:
        raise MalformedBody("The body is not what its headers say", detail=str(exc)) from exc


async def _chunks(part: BodyPartReader) -> AsyncIterator[bytes]:
    while chunk := await part.read_chunk(_CHUNK_BYTES):
        yield chunk


@contextmanager
def _error_member() -> Iterator[None]:
    """Say what is wrong also where clients of these operations look for it."""
    try:
        yield
    except AgentsvcError as exc:
        exc.extra = {"error": exc.message, **exc.extra}
        raise
