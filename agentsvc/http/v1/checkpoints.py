"""Handlers of checkpoints: files to which conversations go back."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import Conflict, Gone, NotFound, Unsupported, to_stored
from agentsvc.domain import Content, ContentKind, Message
from agentsvc.http.keys import CONVERSATIONS, PENDING, PRINCIPAL
from agentsvc.http.routes import Routes
from agentsvc.http.v1.conversations import PREFIX
from agentsvc.http.wire import SUCCESS, Success, Time, path_id

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


ROUTES: Final = Routes(PREFIX)


@ROUTES.add("GET", "/{conversation_id}/checkpoints", errors=(NotFound,))
async def get_checkpoints(request: web.Request) -> CheckpointList:
    """List the checkpoints of a conversation's files.

    One is kept before each message to an agent that rests, where `sandboxes.checkpoints` says so and
    the backend can. They go with the sandbox.
    """
    conversation_id = path_id(request, "conversation_id")
    found = await request.app[CONVERSATIONS].checkpoints(
        request[PRINCIPAL].user_id, conversation_id
    )
    items = [CheckpointView(id=one.id, created_at=to_stored(one.created_at)) for one in found]
    return CheckpointList(items=items[::-1])


@ROUTES.add(
    "POST",
    "/{conversation_id}/rollback",
    errors=(NotFound, Conflict, Gone, Unsupported),
    example={"checkpoint_id": "0" * 32},
)
async def post_rollback(request: web.Request, body: RollbackBody) -> Success:
    """Put the files of a conversation back to a checkpoint.

    All files of its sandbox are those of the checkpoint then, and what runs there ends; its agent
    server is started anew, unless its user had the sandbox rest. The history stays, and the agent is
    told. Refused (409) while the agent works or messages wait for it, and where other conversations
    live in the sandbox.
    """
    user_id, conversation_id = request[PRINCIPAL].user_id, path_id(request, "conversation_id")
    wanted = body.checkpoint_id
    known = await request.app[CONVERSATIONS].checkpoints(user_id, conversation_id)
    message = _message([one.created_at for one in known if one.id == wanted])
    await request.app[PENDING].roll_back(user_id, conversation_id, wanted, message)
    return SUCCESS


def _message(moments: Sequence[datetime]) -> Message:
    texts = (_TOLD.format(moment=f"{moment:%Y-%m-%d %H:%M:%S}") for moment in moments)
    return Message(content=tuple(Content(kind=ContentKind.TEXT, text=text) for text in texts))
