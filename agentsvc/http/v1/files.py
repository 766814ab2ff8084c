"""Types and handlers of what is read out of a conversation's sandbox, and of downloads."""

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
    """Which file to read: an absolute path, or one relative to the project."""

    file_path: Path = DEFAULT_FILE
    """The file: an absolute path, or one relative to the project"""


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory to list: an absolute path, or one relative to the project."""

    path: Path = USUAL_ROOT
    """The directory: an absolute path, or one relative to the project"""


class GitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look, and what to compare with."""

    path: Path
    """The repository, or a file or directory in it: an absolute path, or one relative to the
    project"""
    ref: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Commit, branch or tag to compare with; left out: the remote branch, else the last commit"""


class SkillsView(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of a conversation."""

    skills: list[Skill]
    """The skills; empty unless the sandbox runs"""


class HooksView(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a conversation's project."""

    hooks: list[HookEvent]
    """The hooks by what they are for; empty unless the sandbox runs"""


def to_meta(view: ConversationView) -> bytes:
    """Return what a download tells of the conversation: what is stored, and no key."""
    shown: dict[str, Any] = msgspec.structs.asdict(from_view(view, Links(base="")))
    for name in ("sandbox_status", "execution_status", "conversation_url", "session_api_key"):
        del shown[name]
    return msgspec.json.format(encode(shown), indent=2)


PREFIX: Final = f"{CONVERSATIONS_PREFIX}/{{conversation_id}}"

ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/file", example={"file_path": "README.md"})
async def get_file(request: web.Request, conversation_id: str, query: FileQuery) -> str:
    """Read a text file in the sandbox; an empty text if that cannot be done.

    The text as a JSON string. An empty one, and never an error, where there is no such file, it is
    no text, or the sandbox does not run.
    """
    files, user_id = request.app[FILES], user_of(request)
    return await files.read_text(user_id, conversation_id, query.file_path)


@ROUTES.add("GET", "/files", errors=OF_AGENTS, example={"path": "."})
async def get_files(request: web.Request, conversation_id: str, query: FilesQuery) -> list[str]:
    """List the files below a directory in the sandbox, relative to it.

    At most 2000 paths, sorted; directories of tools, such as `.git` and `node_modules`, are left
    out.
    """
    return await request.app[FILES].list_files(user_of(request), conversation_id, query.path)


@ROUTES.add("GET", "/git/changes", errors=(BadRequest, *OF_AGENTS), example={"path": "."})
async def get_git_changes(
    request: web.Request, conversation_id: str, query: GitQuery
) -> list[GitChange]:
    """List the files that differ from a git ref.

    Paths are relative to the one that is asked for. Refused (409) while the sandbox does not run.
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
    """Get a file as it is and as it is in a git ref.

    Both sides are null where the path is in no repository. Refused (409) while the sandbox does not
    run.
    """
    return await request.app[FILES].git_diff(
        user_of(request), conversation_id, query.path, ref=query.ref
    )


@ROUTES.add("GET", "/skills", errors=OF_AGENTS)
async def get_skills(request: web.Request, conversation_id: str) -> SkillsView:
    """List the skills of a conversation; none unless its sandbox runs.

    Those of the repository, of the user and published ones, without those the user has disabled.
    """
    with error_member():
        found = await request.app[FILES].skills(user_of(request), conversation_id)
    return SkillsView(skills=found)


@ROUTES.add("GET", "/hooks", errors=OF_AGENTS)
async def get_hooks(request: web.Request, conversation_id: str) -> HooksView:
    """List the hooks of a conversation's project; none unless its sandbox runs.

    As the agent server reads them from the project.
    """
    with error_member():
        found = await request.app[FILES].hooks(user_of(request), conversation_id)
    return HooksView(hooks=found)


@ROUTES.add("GET", "/download", bytes, media=ZIP, errors=(Conflict, ExportTooLarge), is_stream=True)
async def get_download(request: web.Request, conversation_id: str) -> web.StreamResponse:
    """Download a conversation and its events as a zip file.

    `meta.json` and one file for each event, in the order of the events. Refused (413) for a
    conversation with too many of them, and (409) while another download of it goes on.
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
    """Send a zip file as its parts come; the first one decides whether there is an answer.

    Whoever takes longer over a part than a request may take is cut off.
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
