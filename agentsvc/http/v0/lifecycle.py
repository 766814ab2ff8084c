"""Types and handlers of the older generation that start, stop and place a conversation.

To stop is to interrupt the agent and pause the sandbox, to start is to resume it.
"""

import contextlib
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import AgentRefused, AgentUnavailable, BadRequest, Conflict, Gone, NotFound
from agentsvc.conversations import SANDBOX_GONE, ConversationView
from agentsvc.http.keys import CONVERSATIONS, PRINCIPAL, SANDBOXES
from agentsvc.http.routes import OF_SANDBOXES, Routes
from agentsvc.http.v0.conversations import conversation_id_of, find_view, get_view
from agentsvc.http.v0.types_conversations import (
    ConversationStatus,
    StartAnswer,
    from_known,
    shown_id,
    status_of,
)
from agentsvc.http.wire import read_json

STOPPED_MESSAGE: Final = "Conversation stopped successfully"
NOT_RUNNING_MESSAGE: Final = "Conversation was not running"


class StartAgainBody(msgspec.Struct, frozen=True, kw_only=True):
    """ProvidersSetModel: which git providers a front end knows of; nothing depends on it."""

    providers_set: (
        Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] | None
    ) = None
    """Names of git providers; read, and without effect. Null: none"""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where a conversation runs: the ids of its sandbox and of itself."""

    runtime_id: str | None
    """Id of its sandbox; null if there is none"""
    session_id: str
    """Id of the conversation"""


def is_running(view: ConversationView) -> bool:
    """Whether there is something to stop."""
    return status_of(view) in (ConversationStatus.STARTING, ConversationStatus.RUNNING)


def from_stopped(view: ConversationView) -> StartAnswer:
    """Return the answer to a stop, which tells the state the conversation was in before."""
    return StartAnswer(
        conversation_id=shown_id(view),
        message=STOPPED_MESSAGE,
        conversation_status=status_of(view),
    )


def from_not_running(name: str) -> StartAnswer:
    """Return the answer to a stop where nothing ran."""
    return StartAnswer(
        conversation_id=name,
        message=NOT_RUNNING_MESSAGE,
        conversation_status=ConversationStatus.STOPPED,
    )


def from_place(view: ConversationView) -> RuntimeConfig:
    """Return where a conversation runs."""
    return RuntimeConfig(runtime_id=view.conversation.sandbox_id, session_id=shown_id(view))


ROUTES: Final = Routes("/api/conversations/{conversation_id}")


@ROUTES.add(
    "POST",
    "/start",
    body=StartAgainBody,
    errors=(BadRequest, *OF_SANDBOXES),
    example={"providers_set": ["github"]},
)
async def post_start(request: web.Request) -> StartAnswer:
    """Let a stopped conversation run again.

    Its sandbox is resumed; one that runs is left alone. The body may be left out.
    """
    name = conversation_id_of(request)
    await read_json(request, StartAgainBody)
    view = await find_view(request, name)
    if view is None:
        extra = {"status": "error", "conversation_id": name}
        raise NotFound(f"Conversation {name} not found", extra=extra)
    await _resume(request, view)
    return from_known(await get_view(request))


@ROUTES.add("POST", "/stop", errors=(BadRequest, *OF_SANDBOXES))
async def post_stop(request: web.Request) -> StartAnswer:
    """Stop a conversation.

    Its sandbox is paused, with all conversations in it. One that does not run is left alone.
    """
    name = conversation_id_of(request)
    view = await find_view(request, name)
    if view is None or not is_running(view):
        return from_not_running(name)
    await _pause(request, view)
    return from_stopped(view)


@ROUTES.add("GET", "/config", errors=(BadRequest,))
async def get_config(request: web.Request) -> RuntimeConfig:
    """Tell where a conversation runs.

    For clients that look into the sandbox.
    """
    return from_place(await get_view(request))


async def _resume(request: web.Request, view: ConversationView) -> None:
    """Ask for the sandbox of a conversation to run; one that is still being made needs no asking.

    Raises Conflict if the start had failed, Gone if the sandbox is, or as a resume does.
    """
    conversation = view.conversation
    if conversation.start_failed:
        raise Conflict(f"The conversation did not start: {conversation.start_detail}")
    if not conversation.is_ready:
        return
    if view.sandbox is None:
        raise Gone(SANDBOX_GONE)
    await request.app[SANDBOXES].resume(request[PRINCIPAL].user_id, view.sandbox.id)


async def _pause(request: web.Request, view: ConversationView) -> None:
    """Interrupt the agent and ask for a paused sandbox; raises Conflict during the start."""
    if not view.conversation.is_ready or view.sandbox is None:
        raise Conflict("The conversation is still being started")
    user_id = request[PRINCIPAL].user_id
    # An agent that cannot be told is stopped all the same, with its sandbox.
    with contextlib.suppress(AgentUnavailable, AgentRefused, Conflict, NotFound):
        await request.app[CONVERSATIONS].interrupt(user_id, view.conversation.id)
    await request.app[SANDBOXES].pause(user_id, view.sandbox.id)
