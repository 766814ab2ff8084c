"""Wire structs and handlers for files, git changes and skills of a sandbox, and for downloads."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web

from agentsvc.agentserver import GitChange, GitDiff
from agentsvc.base import BadRequest, Conflict, ExportTooLarge, NotFound, dashed
from agentsvc.conversations import USUAL_ROOT, ConversationView, HookEvent, Skill
from agentsvc.http.keys import CONFIG, CONVERSATIONS, EXPORTS, FILES, user_of
from agentsvc.http.routes import OF_AGENTS, ZIP, Routes
from agentsvc.http.urls import Links
from agentsvc.http.v1.conversations import PREFIX as CONVERSATIONS_PREFIX
from agentsvc.http.v1.conversations import from_view
from agentsvc.http.wire import encode, error_member

DEFAULT_FILE: Final = "/workspace/project/PLAN.md"

type Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the text of a file."""

    file_path: Path = DEFAULT_FILE
    """Path of the file, absolute or relative to the project"""


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the files of a directory."""

    path: Path = USUAL_ROOT
    """Path of the directory, absolute or relative to the project"""


class GitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Query for git changes: a path, and the ref to compare with."""

    path: Path
    """Path of the repository, or of a file or directory in it, absolute or relative to the
    project"""
    ref: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Commit, branch or tag to compare with; omitted: the remote branch, otherwise the last
    commit"""


class SkillsView(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of a conversation."""

    skills: list[Skill]
    """The skills; empty unless the sandbox is running"""


class HooksView(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a conversation's project."""

    hooks: list[HookEvent]
    """The hooks, grouped by the event that triggers them; empty unless the sandbox is running"""


def to_meta(view: ConversationView) -> bytes:
    """Return `meta.json` of a download: the stored fields of the conversation, without its key."""
    shown: dict[str, Any] = msgspec.structs.asdict(from_view(view, Links(base="")))
    for name in ("sandbox_status", "execution_status", "conversation_url", "session_api_key"):
        del shown[name]
    return msgspec.json.format(encode(shown), indent=2)


PREFIX: Final = f"{CONVERSATIONS_PREFIX}/{{conversation_id}}"

ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/file", example={"file_path": "README.md"})
async def get_file(request: web.Request, conversation_id: str, query: FileQuery) -> str:
    """Read a text file in the sandbox; an empty string if it cannot be read.

    The response is the text as a JSON string. It is an empty string, not an error, if the file does
    not exist or is not a text, or if the sandbox is not running.
    """
    files, user_id = request.app[FILES], user_of(request)
    return await files.read_text(user_id, conversation_id, query.file_path)


@ROUTES.add("GET", "/files", errors=OF_AGENTS, example={"path": "."})
async def get_files(request: web.Request, conversation_id: str, query: FilesQuery) -> list[str]:
    """List the files below a directory in the sandbox, with paths relative to it.

    At most 2000 paths, sorted. Directories of tools, such as `.git` and `node_modules`, are
    skipped.
    """
    return await request.app[FILES].list_files(user_of(request), conversation_id, query.path)


@ROUTES.add("GET", "/git/changes", errors=(BadRequest, *OF_AGENTS), example={"path": "."})
async def get_git_changes(
    request: web.Request, conversation_id: str, query: GitQuery
) -> list[GitChange]:
    """List the files that differ from a git ref.

    Paths are relative to the path of the query. Refused (409) unless the sandbox is running.
    """
    return await request.app[FILES].git_changes(
        user_of(request), conversation_id, query.path, ref=query.ref
    )


@ROUTES.add(
    "GET",
    "/git/diff",
    errors=(BadRequest, *OF_AGENTS),
    example={"path": "README.md", "ref": "HEAD"},
)
async def get_git_diff(request: web.Request, conversation_id: str, query: GitQuery) -> GitDiff:
    """Get a file in its present state and as of a git ref.

    Both sides are null if the path is not in a repository. Refused (409) unless the sandbox is
    running.
    """
    return await request.app[FILES].git_diff(
        user_of(request), conversation_id, query.path, ref=query.ref
    )


@ROUTES.add("GET", "/skills", errors=OF_AGENTS)
async def get_skills(request: web.Request, conversation_id: str) -> SkillsView:
    """List the skills of a conversation; empty unless its sandbox is running.

    Skills of the repository, of the user and public skills, except those that the user has
    disabled.
    """
    with error_member():
        found = await request.app[FILES].skills(user_of(request), conversation_id)
    return SkillsView(skills=found)


@ROUTES.add("GET", "/hooks", errors=OF_AGENTS)
async def get_hooks(request: web.Request, conversation_id: str) -> HooksView:
    """List the hooks of a conversation's project; empty unless its sandbox is running.

    The agent server reads them from the project.
    """
    with error_member():
        found = await request.app[FILES].hooks(user_of(request), conversation_id)
    return HooksView(hooks=found)


@ROUTES.add("GET", "/download", bytes, media=ZIP, errors=(Conflict, ExportTooLarge), is_stream=True)
async def get_download(request: web.Request, conversation_id: str) -> web.StreamResponse:
    """Download a conversation and its events as a zip file.

    The zip file has `meta.json` and one file per event, in the order of the events. Refused (413)
    for a conversation with too many events, and (409) while another download of it is running.
    """
    shown_id = dashed(conversation_id)
    try:
        view = await request.app[CONVERSATIONS].get(user_of(request), conversation_id)
    except NotFound as exc:
        raise NotFound(f"Conversation not found: {shown_id}") from exc
    async with request.app[EXPORTS].open(view.conversation.id, to_meta(view)) as parts:
        return await _send(request, parts, f"conversation_{shown_id}.zip")


async def _send(
    request: web.Request, parts: AsyncIterator[bytes], filename: str
) -> web.StreamResponse:
    """Stream a zip file; an error before its first part is raised before the response starts.

    Raises ConnectionResetError if the client takes longer than `request_seconds` to read a part.
    """
    time_limit = request.app[CONFIG].server.request_seconds
    response = web.StreamResponse(
        headers={
            "Content-Type": "application/zip",
            "Content-Disposition": f'attachment; filename="{filename}"',
        }
    )
    async for part in parts:
        if not response.prepared:
            await response.prepare(request)
        try:
            async with asyncio.timeout(time_limit):
                await response.write(part)
        except TimeoutError as exc:
            raise ConnectionResetError("the client does not read on") from exc
    await response.write_eof()
    return response
