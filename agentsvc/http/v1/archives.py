"""Saved workspaces, conversations that begin with one, and checkpoints to which files go back."""

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
    """A workspace that was saved, or is being saved.

    `detail` says why it is not. `skipped` is how many links out of the workspace and special
    files were left out.
    """

    id: str
    """Id of the archive, 32 hex digits; `archive_id` of a start takes it"""
    conversation_id: str
    """Conversation whose workspace it is, 32 hex digits; it may have been deleted since"""
    title: str
    """Title the conversation had when the workspace was saved"""
    state: ArchiveState
    """How far the saving has come; only a `ready` archive can be started from"""
    detail: str | None
    """Why the workspace is not saved; null unless `state` is `failed`"""
    size_bytes: int
    """Bytes the archive takes on the server's disk; 0 until it is ready"""
    unpacked_bytes: int
    """Bytes of all its files together; 0 until it is ready"""
    files: int
    """Number of files in it; 0 until it is ready"""
    skipped: int
    """Number of links out of the workspace and special files that were left out"""
    created_at: Time


class ForkBody(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be different in the copy of a conversation."""

    title: Annotated[str, Meta(max_length=200_000)] | None = None
    """Title of the copy, at most 200,000 characters; null: the one of the conversation"""
    initial_message: MessageBody | None = None
    """First message to the copy, which starts its agent; null: the agent waits for one"""
    llm_model: Name | None = None
    """Provider and name of its model; null: the one of the conversation, as far as there is still a key
    for it, or else that of the settings"""
    when_full: WhenFull | None = None
    """What to do where as many sandboxes run as may; null: as the server is configured"""
    up_to_event_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Last event of the history that is copied; null: all of it. Files are copied as they are now"""


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
    """Save the workspace of a conversation, in the background.

    The answer comes at once, in the state `saving`; ask for the archive until it is `ready` or
    `failed`. It stays when the sandbox and the conversation are deleted, as long as the operator
    keeps archives.
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
    """Start another conversation on a copy of a conversation's workspace and history.

    The answer is a start task, as for any start. The copy begins with the files and the history of
    the conversation as they are now, in a sandbox of its own; the conversation is not changed. With
    `up_to_event_id` the history ends with that event, and the files are those of now all the same.
    The body may be left out.
    """
    wanted = body or ForkBody()
    order, up_to = to_order(copy_to(StartBody, wanted)), wanted.up_to_event_id
    conversations, user_id = request.app[CONVERSATIONS], user_of(request)
    return await conversations.fork(user_id, conversation_id, order, up_to=up_to)


@ROUTES.add("GET", PREFIX, example={"limit": 10})
async def search_archives(request: web.Request, query: PageQuery) -> Page[ArchiveView]:
    """List saved workspaces, newest first.

    Archives of one's own, also failed ones.
    """
    found, next_page_id = await request.app[ARCHIVES].search(
        user_of(request), page_id=query.page_id, limit=query.limit
    )
    return Page(items=[_from_archive(one) for one in found], next_page_id=next_page_id)


@ROUTES.add("GET", f"{PREFIX}/{{archive_id}}", errors=(NotFound,))
async def get_archive(request: web.Request, archive_id: str) -> ArchiveView:
    """Get one saved workspace.

    As far as it has come.
    """
    return _from_archive(await request.app[ARCHIVES].get(user_of(request), archive_id))


@ROUTES.add("DELETE", f"{PREFIX}/{{archive_id}}", errors=(NotFound, Conflict))
async def delete_archive(request: web.Request, archive_id: str) -> Success:
    """Delete a saved workspace.

    Its file goes, too. Refused (409) while it is being saved.
    """
    await request.app[ARCHIVES].delete(user_of(request), archive_id)
    return SUCCESS


_TOLD: Final = (
    "The files in this sandbox were put back to what they were at {moment} UTC: what was changed"
    " after that is undone, and what was running has ended. Look at them before you rely on them."
)


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """Files of a sandbox, as they were before a turn of its agent."""

    id: str
    """Id of the checkpoint, 32 hex digits"""
    created_at: Time
    """When they were like that, in UTC"""


class CheckpointList(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoints of a conversation."""

    items: list[CheckpointView]
    """The checkpoints, newest first; none where the server is not configured to keep any"""


class RollbackBody(msgspec.Struct, frozen=True, kw_only=True):
    """To what a conversation is to go back."""

    checkpoint_id: Annotated[str, Meta(min_length=1, max_length=64)]
    """Id of one of its checkpoints"""


@ROUTES.add("GET", f"{CONVERSATIONS_PREFIX}/{{conversation_id}}/checkpoints", errors=(NotFound,))
async def get_checkpoints(request: web.Request, conversation_id: str) -> CheckpointList:
    """List the checkpoints of a conversation's files.

    One is kept before each message to an agent that rests, where `sandboxes.checkpoints` says so and
    the backend can. They go with the sandbox.
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
    """Put the files of a conversation back to a checkpoint.

    All files of its sandbox are those of the checkpoint then, and what runs there ends; its agent
    server is started anew, unless its user had the sandbox rest. The history stays, and the agent is
    told. Refused (409) while the agent works or messages wait for it, and where other conversations
    live in the sandbox.
    """
    user_id, wanted = user_of(request), body.checkpoint_id
    known = await request.app[CONVERSATIONS].checkpoints(user_id, conversation_id)
    taken_at = next((one.created_at for one in known if one.id == wanted), None)
    text = "" if taken_at is None else _TOLD.format(moment=f"{taken_at:%Y-%m-%d %H:%M:%S}")
    await request.app[PENDING].roll_back(user_id, conversation_id, wanted, message_of(text))
    return SUCCESS
