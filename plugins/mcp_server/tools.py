"""The tools with which other agents use conversations."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import Meta

from agentsvc.base import MAX_INT, AgentsvcError, Conflict, convert
from agentsvc.extension.agents import (
    FILES,
    ConversationQuery,
    ExecutionStatus,
    PendingKind,
    Principal,
    StartOrder,
)
from agentsvc.extension.conversations import text_message
from agentsvc.extension.endings import last_words
from agentsvc.extension.history import ConversationView, EventQuery
from agentsvc.extension.server import SandboxStatus, Server
from agentsvc.extension.web import Scope, check_scope

from .reading import LONGEST_EVENT, SUMMARIZED_KINDS, about, is_over, summaries

_WAIT_SECONDS: Final = 50
_LAST_EVENTS: Final = 20
_READ_BYTES: Final = 4 * 1024 * 1024

type Json = dict[str, Any]
type ConversationId = Annotated[UUID, Meta(description="Id of the conversation")]
type Short = Annotated[str, Meta(max_length=1024)]
type Said = Annotated[str, Meta(min_length=1, max_length=200_000, pattern=r"\S")]
type Line = Annotated[str, Meta(max_length=256, pattern=r"^[^\x00\r\n]*$")]


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool."""


class StartArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of `start_conversation`."""

    message: Annotated[Said, Meta(description="Task for the agent")]
    repository: Annotated[
        Short | None, Meta(description="Repository to clone, as owner/name or a URL")
    ] = None
    branch: Annotated[Short | None, Meta(description="Branch to check out")] = None
    title: Annotated[Short | None, Meta(description="Title of the conversation")] = None
    model: Annotated[
        Line | None, Meta(description="Model to use instead of the one of the settings")
    ] = None
    conversation_id: Annotated[
        UUID | None,
        Meta(
            description="Id for it; a repeated call with the same id starts nothing new, so that it can"
            " be repeated after a lost response"
        ),
    ] = None


class ListArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of `list_conversations`."""

    title_contains: Annotated[Short | None, Meta(description="A part of the title")] = None
    page_id: Annotated[Short | None, Meta(description="`next_page_id` of the previous page")] = None
    limit: Annotated[int, Meta(ge=1, le=100, description="Page size")] = 20


class ConversationArguments(Arguments, frozen=True, kw_only=True):
    """The arguments of a tool for one conversation."""

    conversation_id: ConversationId


class ReadArguments(ConversationArguments, frozen=True, kw_only=True):
    """The arguments of `read_conversation`."""

    after: Annotated[
        int,
        Meta(
            ge=-1,
            le=MAX_INT - 1,
            description="`next_after` of the previous call; -1: from the start",
        ),
    ] = -1
    limit: Annotated[int, Meta(ge=1, le=200, description="Maximum number of events")] = 100


class SendArguments(ConversationArguments, frozen=True, kw_only=True):
    """The arguments of `send_message`."""

    message: Annotated[Said, Meta(description="Message to the agent")]


class AnswerArguments(ConversationArguments, frozen=True, kw_only=True):
    """The arguments of `answer_confirmation`."""

    accept: Annotated[bool, Meta(description="Whether the agent may act")]
    reason: Annotated[str, Meta(max_length=10_000, description="Why not; told to the agent")] = ""


class CollectArguments(ConversationArguments, frozen=True, kw_only=True):
    """The arguments of `collect_conversation`."""

    wait_seconds: Annotated[
        int,
        Meta(
            ge=0, le=_WAIT_SECONDS, description="How long to wait for the end; call again for more"
        ),
    ] = 25


async def get_view(server: Server, caller: Principal, conversation_id: str) -> ConversationView:
    """Return a conversation of the caller; raises NotFound."""
    return await server.conversations.get(caller.user_id, conversation_id, include_starting=True)


async def start_conversation(server: Server, caller: Principal, given: StartArguments) -> Json:
    """Start an agent on a task, in its own sandbox; it works in the background."""
    order = StartOrder(
        conversation_id=given.conversation_id.hex if given.conversation_id else None,
        initial_message=text_message(given.message),
        repository=given.repository,
        branch=given.branch,
        title=given.title,
        llm_model=given.model,
    )
    task = await server.conversations.starts.start(caller.user_id, order)
    return {"conversation_id": task.conversation_id, "start_status": task.status}


async def list_conversations(server: Server, caller: Principal, given: ListArguments) -> Json:
    """List conversations, the newest first, with the status of their agents."""
    query = ConversationQuery(title_contains=given.title_contains, include_starting=True)
    views, next_page_id = await server.conversations.search(
        caller.user_id, query, page_id=given.page_id, limit=given.limit
    )
    return {"conversations": [about(view) for view in views], "next_page_id": next_page_id}


async def read_conversation(server: Server, caller: Principal, given: ReadArguments) -> Json:
    """Read the messages and actions of a conversation, event by event, in order."""
    view = await get_view(server, caller, given.conversation_id.hex)
    events = await server.events.read_stretch(
        view.conversation.id,
        from_seq=given.after + 1,
        to_seq=None,
        limit=given.limit,
        max_bytes=_READ_BYTES,
    )
    return {
        **about(view),
        "events": await asyncio.to_thread(lambda: list(summaries(events))),
        "next_after": events[-1].seq if events else given.after,
    }


async def send_message(server: Server, caller: Principal, given: SendArguments) -> Json:
    """Send a message to the agent, which continues its work with it. Resumes a paused sandbox."""
    view = await get_view(server, caller, given.conversation_id.hex)
    if view.sandbox is not None and view.sandbox_status is SandboxStatus.PAUSED:
        await server.conversations.resume(caller.user_id, view.sandbox.id)
    queued = await server.messages.queue(
        caller.user_id, view.conversation.id, text_message(given.message)
    )
    return {"position": queued.position, "sandbox_status": queued.sandbox_status}


async def stop_conversation(
    server: Server, caller: Principal, given: ConversationArguments
) -> Json:
    """Stop the agent now, in the middle of a step; a message makes it continue."""
    conversation_id = given.conversation_id.hex
    await server.messages.tell(caller.user_id, conversation_id, PendingKind.INTERRUPT)
    return about(await get_view(server, caller, conversation_id))


async def answer_confirmation(server: Server, caller: Principal, given: AnswerArguments) -> Json:
    """Accept or reject the actions of an agent whose status is `waiting_for_confirmation`."""
    kind = PendingKind.ACCEPT if given.accept else PendingKind.REJECT
    conversation_id = given.conversation_id.hex
    view = await get_view(server, caller, conversation_id)
    if view.execution_status is not ExecutionStatus.WAITING_FOR_CONFIRMATION:
        raise Conflict("The agent is not waiting for a confirmation")
    await server.messages.tell(caller.user_id, conversation_id, kind, reason=given.reason)
    return about(await get_view(server, caller, conversation_id))


async def collect_conversation(server: Server, caller: Principal, given: CollectArguments) -> Json:
    """Wait for the end of the agent's work; return its last message and the files it changed."""
    conversation_id = given.conversation_id.hex
    changed = asyncio.Event()
    forget = server.event_bus.watch(
        caller.user_id, lambda news: None if news.delta else changed.set()
    )
    try:
        view = await get_view(server, caller, conversation_id)
        async with asyncio.timeout(given.wait_seconds):
            while not is_over(view):
                await changed.wait()
                changed.clear()
                view = await get_view(server, caller, conversation_id)
    except TimeoutError:
        view = await get_view(server, caller, conversation_id)
    finally:
        forget()
    newest = EventQuery(kinds=SUMMARIZED_KINDS, descending=True)
    events, _ = await server.events.search(
        conversation_id, newest, page_id=None, limit=_LAST_EVENTS
    )
    readable = [
        one if len(one.body) <= LONGEST_EVENT else msgspec.structs.replace(one, body=b"{}")
        for one in events
    ]
    return {
        **about(view),
        "is_over": is_over(view),
        "answer": await asyncio.to_thread(last_words, readable),
        "changes": await _changes(server, caller, view),
    }


async def _changes(
    server: Server, caller: Principal, view: ConversationView
) -> list[dict[str, str]] | None:
    """Return the files that differ from the last commit, or None if the sandbox cannot tell."""
    if view.sandbox_status is not SandboxStatus.RUNNING or not view.conversation.is_ready:
        return None
    try:
        found = await server.app[FILES].git_changes(caller.user_id, view.conversation.id, ".")
    except AgentsvcError:
        return None
    return [{"status": one.status, "path": one.path} for one in found]


type Run = Callable[[Server, Principal, Any], Awaitable[Json]]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, and the scope of the keys that may use it."""

    run: Run
    takes: type[Arguments]
    scope: Scope = Scope.RUN
    is_destructive: bool = False

    @property
    def name(self) -> str:
        """The name for agents."""
        return self.run.__name__

    async def call(self, server: Server, caller: Principal, arguments: Any) -> Json:
        """Validate the arguments and run the tool; raises the errors of the API."""
        check_scope(self.scope, caller)
        given = convert(arguments, self.takes, loc=("arguments",))
        return await self.run(server, caller, given)

    def describe(self) -> Json:
        """Return the description for agents."""
        _, schemas = msgspec.json.schema_components([self.takes])
        schema = {**schemas[self.takes.__name__]}
        schema.pop("title", None)
        schema.pop("description", None)
        is_read = self.scope is Scope.READ
        return {
            "name": self.name,
            "title": self.name.replace("_", " ").capitalize(),
            "description": " ".join((self.run.__doc__ or "").split()),
            "inputSchema": schema,
            "annotations": {
                "readOnlyHint": is_read,
                "destructiveHint": self.is_destructive,
                "openWorldHint": not is_read,
            },
        }


_ALL: Final = (
    Tool(run=start_conversation, takes=StartArguments),
    Tool(run=list_conversations, takes=ListArguments, scope=Scope.READ),
    Tool(run=read_conversation, takes=ReadArguments, scope=Scope.READ),
    Tool(run=send_message, takes=SendArguments),
    Tool(run=stop_conversation, takes=ConversationArguments, is_destructive=True),
    Tool(run=answer_confirmation, takes=AnswerArguments),
    Tool(run=collect_conversation, takes=CollectArguments, scope=Scope.READ),
)
TOOLS: Final[Mapping[str, Tool]] = {tool.name: tool for tool in _ALL}
