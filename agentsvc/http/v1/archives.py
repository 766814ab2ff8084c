"""Archives of workspaces, forks of conversations, and rollbacks of files to a checkpoint."""

from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import Conflict, Gone, NotFound, Unsupported, copy_to, view_of
from agentsvc.conversations import Archive, ArchiveState, StartTask
from agentsvc.domain import WhenFull, message_of
from agentsvc.http.keys import ARCHIVES, CONVERSATIONS, PENDING, user_of
from agentsvc.http.routes import OF_STARTS, Effect, Routes, effect_of
from agentsvc.http.v1.conversations import PREFIX as CONVERSATIONS_PREFIX
from agentsvc.http.v1.conversations import answer_task
from agentsvc.http.v1.start_tasks import Name, StartBody, StartTaskView, to_order
from agentsvc.http.v1.types_messages import MessageBody
from agentsvc.http.wire import SUCCESS, Page, PageQuery, Success, Time

PREFIX: Final = "/api/v1/archives"


class ArchiveView(msgspec.Struct, frozen=True, kw_only=True):
    """An archive of a workspace, complete or still being saved.

    `detail` is the reason of a failure. `skipped` counts the special files and the links that point
    out of the workspace; they are not saved.
    """

    id: str
    """Id of the archive, 32 hex digits; pass it as `archive_id` when you start a conversation"""
    conversation_id: str
    """Id of the conversation whose workspace was saved, 32 hex digits; it may be deleted by now"""
    title: str
    """Title of the conversation when its workspace was saved"""
    state: ArchiveState
    """State of the archive; a conversation can start only from a `ready` archive"""
    detail: str | None
    """Why saving failed; null unless `state` is `failed`"""
    size_bytes: int
    """Size of the archive on the server's disk in bytes; 0 until it is ready"""
    unpacked_bytes: int
    """Total size of the files in bytes; 0 until it is ready"""
    files: int
    """Number of files in the archive; 0 until it is ready"""
    skipped: int
    """Number of special files and links out of the workspace that were not saved"""
    created_at: Time


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a fork: what differs from the original conversation."""

    title: Annotated[str, Meta(max_length=200_000)] | None = None
    """Title of the fork, at most 200,000 characters; null: the title of the original"""
    initial_message: MessageBody | None = None
    """First message to the fork, which starts its agent; null: the agent waits for a message"""
    llm_model: Name | None = None
    """Provider and name of the model; null: the model of the original if there is still a key for
    it, otherwise the model of the settings"""
    when_full: WhenFull | None = None
    """What to do when the limit of running sandboxes is reached; null: as the server is
    configured"""
    up_to_event_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Id of the last event to copy; null: the whole history. Files are copied in their present
    state"""


ROUTES: Final = Routes()


def _from_archive(archive: Archive) -> ArchiveView:
    return view_of(ArchiveView, archive, detail=archive.reason or None)


@ROUTES.add(
    "POST",
    f"{CONVERSATIONS_PREFIX}/{{conversation_id}}/archives",
    effect=effect_of(Archive, _from_archive, status=HTTPStatus.CREATED),
    errors=(NotFound, Conflict, Gone),
)
async def post_archive(request: web.Request, conversation_id: str) -> Archive:
    """Save the workspace of a conversation as an archive, in the background.

    The response comes at once, with the state `saving`; poll the archive until it is `ready` or
    `failed`. The archive remains when the sandbox and the conversation are deleted; the `archives`
    section of the configuration limits the age and the total size of archives.
    """
    return await request.app[CONVERSATIONS].save_workspace(user_of(request), conversation_id)


@ROUTES.add(
    "POST",
    f"{CONVERSATIONS_PREFIX}/{{conversation_id}}/fork",
    StartTaskView,
    effect=Effect(kind=StartTask, answer=answer_task),
    errors=(Gone, *OF_STARTS),
    example={"title": "Another way"},
)
async def post_fork(request: web.Request, conversation_id: str, body: ForkBody | None) -> StartTask:
    """Fork a conversation: start a new one with a copy of its files and history.

    The response is a start task, as for any start. The fork gets its own sandbox and copies of the
    files and the history in their present state; the original conversation is not changed. With
    `up_to_event_id` the history ends with that event, but the files are still those of now. The
    body may be omitted.
    """
    wanted = body or ForkBody()
    order, up_to = to_order(copy_to(StartBody, wanted)), wanted.up_to_event_id
    conversations, user_id = request.app[CONVERSATIONS], user_of(request)
    return await conversations.fork(user_id, conversation_id, order, up_to=up_to)


@ROUTES.add("GET", PREFIX, example={"limit": 10})
async def search_archives(request: web.Request, query: PageQuery) -> Page[ArchiveView]:
    """List your archives of workspaces, newest first.

    Includes archives that failed.
    """
    found, next_page_id = await request.app[ARCHIVES].search(
        user_of(request), page_id=query.page_id, limit=query.limit
    )
    return Page(items=[_from_archive(one) for one in found], next_page_id=next_page_id)


@ROUTES.add("GET", f"{PREFIX}/{{archive_id}}", errors=(NotFound,))
async def get_archive(request: web.Request, archive_id: str) -> ArchiveView:
    """Get an archive of a workspace.

    Poll it while its state is `saving`.
    """
    return _from_archive(await request.app[ARCHIVES].get(user_of(request), archive_id))


@ROUTES.add("DELETE", f"{PREFIX}/{{archive_id}}", errors=(NotFound, Conflict))
async def delete_archive(request: web.Request, archive_id: str) -> Success:
    """Delete an archive of a workspace.

    Its file is deleted, too. Refused (409) while the archive is being saved.
    """
    await request.app[ARCHIVES].delete(user_of(request), archive_id)
    return SUCCESS


_NOTICE: Final = (
    "The files in this sandbox were put back to what they were at {moment} UTC: what was changed"
    " after that is undone, and what was running has ended. Look at them before you rely on them."
)


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint: a copy of a sandbox's files from before a turn of its agent."""

    id: str
    """Id of the checkpoint, 32 hex digits"""
    created_at: Time
    """When the copy was made, in UTC"""


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a conversation."""

    items: list[CheckpointView]
    """The checkpoints, newest first; empty unless the server is configured to keep checkpoints"""


class RollbackBody(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint to restore."""

    checkpoint_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """Id of a checkpoint of the conversation"""


@ROUTES.add("GET", f"{CONVERSATIONS_PREFIX}/{{conversation_id}}/checkpoints", errors=(NotFound,))
async def get_checkpoints(request: web.Request, conversation_id: str) -> CheckpointList:
    """List the checkpoints of a conversation's files.

    A checkpoint is made before each message to an idle agent if `sandboxes.checkpoints` enables it
    and the backend supports it. Checkpoints are deleted with the sandbox.
    """
    found = await request.app[CONVERSATIONS].checkpoints(user_of(request), conversation_id)
    return CheckpointList(items=[view_of(CheckpointView, one) for one in reversed(found)])


@ROUTES.add(
    "POST",
    f"{CONVERSATIONS_PREFIX}/{{conversation_id}}/rollback",
    errors=(NotFound, Conflict, Gone, Unsupported),
    example={"checkpoint_id": "0" * 32},
)
async def post_rollback(request: web.Request, conversation_id: str, body: RollbackBody) -> Success:
    """Roll the files of a conversation back to a checkpoint.

    All files of the sandbox are restored from the checkpoint and its processes end. The agent
    server is started again unless the user had paused or stopped the sandbox. The history stays,
    and a message tells the agent about the rollback. Refused (409) while the agent works or
    messages are queued for it, and if other conversations share the sandbox.
    """
    user_id, wanted = user_of(request), body.checkpoint_id
    known = await request.app[CONVERSATIONS].checkpoints(user_id, conversation_id)
    taken_at = next((one.created_at for one in known if one.id == wanted), None)
    text = "" if taken_at is None else _NOTICE.format(moment=f"{taken_at:%Y-%m-%d %H:%M:%S}")
    await request.app[PENDING].roll_back(user_id, conversation_id, wanted, message_of(text))
    return SUCCESS
