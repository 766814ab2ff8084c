"""Handlers of V0 that start and stop conversations.

Stopping interrupts the agent and pauses the sandbox; starting resumes the sandbox.
"""

import asyncio
import contextlib
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import AgentRefused, AgentUnavailable, BadRequest, Conflict, Gone, NotFound
from agentsvc.conversations import SANDBOX_GONE, ConversationView
from agentsvc.http.keys import CONVERSATIONS, SANDBOXES, user_of
from agentsvc.http.routes import OF_SANDBOXES, Routes
from agentsvc.http.v0.conversations import (
    ConversationStatus,
    StartAnswer,
    answer_existing,
    conversation_id_of,
    find_view,
    get_view,
    shown_id,
    status_of,
)
from agentsvc.http.wire import read_json

ROUTES: Final = Routes("/api/conversations")

_SYNC_SECONDS: Final = 10.0


class StartAgainBody(msgspec.Struct, frozen=True, kw_only=True):
    """ProvidersSetModel: the git providers that a front end knows; without effect."""

    providers_set: (
        Annotated[list[Annotated[str, Meta(max_length=100)]], Meta(max_length=100)] | None
    ) = None
    """Names of git providers; accepted without effect. Null: none"""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of a conversation and its sandbox."""

    runtime_id: str | None
    """Id of the sandbox; null if there is none"""
    session_id: str
    """Id of the conversation"""


@ROUTES.add(
    "POST",
    "/{conversation_id}/start",
    body=StartAgainBody,
    errors=(BadRequest, *OF_SANDBOXES),
    example={"providers_set": ["github"]},
)
async def post_start(request: web.Request) -> StartAnswer:
    """Start a stopped conversation.

    Resumes its sandbox; no effect if the sandbox is running. The request needs a body, which may be
    `{}`.
    """
    name = conversation_id_of(request)
    await read_json(request, StartAgainBody)
    view = await find_view(request, name)
    if view is None:
        extra = {"status": "error", "conversation_id": name}
        raise NotFound(f"Conversation {name} not found", extra=extra)
    await _resume(request, view)
    return answer_existing(await get_view(request))


@ROUTES.add("POST", "/{conversation_id}/stop", errors=(BadRequest, *OF_SANDBOXES))
async def post_stop(request: web.Request) -> StartAnswer:
    """Stop a conversation.

    Pauses its sandbox, with all conversations in it. No effect on a conversation that is not
    running.
    """
    name = conversation_id_of(request)
    view = await find_view(request, name)
    status = ConversationStatus.STOPPED if view is None else status_of(view)
    if view is None or status not in (ConversationStatus.STARTING, ConversationStatus.RUNNING):
        message, status = "Conversation was not running", ConversationStatus.STOPPED
    else:
        # Clients expect the status from before the stop.
        await _pause(request, view)
        name, message = shown_id(view), "Conversation stopped successfully"
    return StartAnswer(conversation_id=name, message=message, conversation_status=status)


@ROUTES.add("GET", "/{conversation_id}/config", errors=(BadRequest,))
async def get_config(request: web.Request) -> RuntimeConfig:
    """Get the ids of a conversation and its sandbox.

    For clients that access the sandbox.
    """
    view = await get_view(request)
    return RuntimeConfig(runtime_id=view.conversation.sandbox_id, session_id=shown_id(view))


async def _resume(request: web.Request, view: ConversationView) -> None:
    """Resume the sandbox of a conversation; do nothing during its start.

    Raises Conflict if the start failed, Gone if the sandbox is gone, and as `resume` does.
    """
    conversation = view.conversation
    if conversation.start_failed:
        raise Conflict(f"The conversation did not start: {conversation.start_detail}")
    if not conversation.is_ready:
        return
    if view.sandbox is None:
        raise Gone(SANDBOX_GONE)
    await request.app[CONVERSATIONS].resume(user_of(request), view.sandbox.id)


async def _pause(request: web.Request, view: ConversationView) -> None:
    """Interrupt the agent and pause the sandbox; raises Conflict during the start.

    The events of the interruption are fetched first, because a paused sandbox delivers no events.
    """
    if not view.conversation.is_ready or view.sandbox is None:
        raise Conflict("The conversation is still being started")
    user_id = user_of(request)
    # If the agent cannot be interrupted or does not respond in time, pausing the sandbox stops it.
    with contextlib.suppress(AgentUnavailable, AgentRefused, Conflict, NotFound, TimeoutError):
        await request.app[CONVERSATIONS].interrupt(user_id, view.conversation.id)
        async with asyncio.timeout(_SYNC_SECONDS):
            await request.app[CONVERSATIONS].ingestor.sync(view.conversation.id)
    await request.app[SANDBOXES].pause(user_id, view.sandbox.id)
