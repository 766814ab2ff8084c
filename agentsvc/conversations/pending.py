"""Messages that wait for a conversation to be ready: stored when taken, delivered in order.

A message is removed once the agent has it. Where it can never be delivered, the conversation
gets an event that says so and holds its text, so that nothing that was taken gets lost.
"""

import logging
from typing import Any, Final

import msgspec

from agentsvc.agent import AgentClient, AgentServer
from agentsvc.announcements import Announcement, Announcements, Subject
from agentsvc.conversations.agent_body import text_of, to_agent_message
from agentsvc.conversations.model import SANDBOX_GONE, ConversationView
from agentsvc.conversations.recorder import event_time, not_delivered_event
from agentsvc.conversations.service import LONGEST_TOOL_SECONDS, Conversations
from agentsvc.db import Database, IntegrityError, Queryable, Row, Transaction
from agentsvc.effects import is_watched, note_effect
from agentsvc.errors import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    Conflict,
    Gone,
    NotFound,
    TooManyRequests,
)
from agentsvc.events import EventLog
from agentsvc.orders import Message, StartStatus, WhenFull
from agentsvc.quotas import check_spend
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus
from agentsvc.supervisor import Supervisor
from agentsvc.values import new_id, now, parse_uuid, to_stored

log = logging.getLogger(__name__)

MOST_PENDING: Final = 10
"""How many messages of one conversation may wait."""

_TASK: Final = "task-"


class PendingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits.

    `said_before` is how often its conversation had the same before the first try to deliver it.
    """

    id: str
    conversation_id: str
    message: Message
    said_before: int | None
    run: bool = True
    """Whether the agent is to go on with it."""


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message that was taken; positions count from 1."""

    id: str
    position: int
    sandbox_status: SandboxStatus
    """Whether its sandbox runs, or has to be started first."""


_encode = msgspec.json.encode
_message = msgspec.json.Decoder(Message)


class PendingTable:
    """The SQL of waiting messages."""

    async def insert(self, tx: Transaction, pending: PendingMessage) -> None:
        """Insert a message behind all others."""
        await tx.run(
            "INSERT INTO pending_messages (id, conversation_id, message, run, created_at)"
            " VALUES (:id, :conversation_id, :message, :run, :created_at)",
            {
                "id": pending.id,
                "conversation_id": pending.conversation_id,
                "message": _encode(pending.message),
                "run": pending.run,
                "created_at": to_stored(now()),
            },
        )

    async def count(self, reader: Queryable, conversation_id: str) -> int:
        """Return how many messages of a conversation wait."""
        rows = await reader.all(
            "SELECT count(*) AS n FROM pending_messages WHERE conversation_id = :conversation_id",
            {"conversation_id": conversation_id},
        )
        return int(rows[0]["n"])

    async def find_first(self, reader: Queryable, conversation_id: str) -> PendingMessage | None:
        """Return the message of a conversation that has waited longest."""
        row = await reader.one(
            "SELECT id, conversation_id, message, run, said_before FROM pending_messages"
            " WHERE conversation_id = :conversation_id ORDER BY seq LIMIT 1",
            {"conversation_id": conversation_id},
        )
        return _from_row(row) if row else None

    async def set_said_before(self, tx: Transaction, message_id: str, said_before: int) -> None:
        """Note that a delivery is being tried, and what there was before."""
        await tx.run(
            "UPDATE pending_messages SET said_before = :said_before WHERE id = :id",
            {"id": message_id, "said_before": said_before},
        )

    async def delete(self, tx: Transaction, message_id: str) -> None:
        """Remove a message."""
        await tx.run("DELETE FROM pending_messages WHERE id = :id", {"id": message_id})

    async def set_run_asked(self, tx: Transaction, conversation_id: str, at: str) -> None:
        """Note when an agent got a message to go on with, in the form events have their times."""
        await tx.run(
            "UPDATE conversations SET facts = CAST(json_set(CAST(facts AS TEXT),"
            " '$.run_asked_at', :at) AS BLOB) WHERE id = :id",
            {"id": conversation_id, "at": at},
        )

    async def all_waiting(self, reader: Queryable) -> list[tuple[str, str]]:
        """Return each conversation with waiting messages, behind the user it is of."""
        rows = await reader.all(
            "SELECT DISTINCT c.user_id, c.id FROM pending_messages AS p"
            " JOIN conversations AS c ON c.id = p.conversation_id"
        )
        return [(row["user_id"], row["id"]) for row in rows]


class PendingMessages:
    """Takes messages at any time and hands each to its agent as soon as that is possible."""

    def __init__(
        self,
        *,
        db: Database,
        conversations: Conversations,
        sandboxes: Sandboxes,
        agents: AgentClient,
        events: EventLog,
        supervisor: Supervisor,
        announcements: Announcements,
    ) -> None:
        self._db = db
        self._table = PendingTable()
        self._announcements = announcements
        self._conversations = conversations
        self._sandboxes = sandboxes
        self._agents = agents
        self._events = events
        self._supervisor = supervisor
        self._woken: set[str] = set()

    async def send(
        self, user_id: str, conversation_id: str, message: Message, *, run: bool
    ) -> SandboxStatus:
        """Hand a message to the agent; return how its sandbox is.

        It is kept while earlier ones are not delivered, and where the sandbox was paused because
        nobody used it, which is resumed then; and if it must not be said twice although the
        request may be repeated. Raises as `Conversations.send_message`, and TooManyRequests.
        """
        view = await self._conversations.get(user_id, conversation_id, include_starting=True)
        must_wait = await self._must_wait(view)
        if is_watched() and not must_wait:
            self._conversations.require_agent(view)
        elif not must_wait:
            try:
                return await self._conversations.send_message(
                    user_id, conversation_id, message, run=run
                )
            except Conflict:
                # It may have been culled since it was looked at.
                view = await self._conversations.get(
                    user_id, conversation_id, include_starting=True
                )
                if not await self._must_wait(view):
                    raise
        queued = await self.queue(user_id, conversation_id, message, run=run)
        return queued.sandbox_status

    async def _must_wait(self, view: ConversationView) -> bool:
        """Whether a message has to wait, for earlier ones or until a culled sandbox runs again."""
        sandbox = view.sandbox
        if sandbox is None or not view.conversation.is_ready:
            return False
        if sandbox.status in (SandboxStatus.STARTING, SandboxStatus.RUNNING):
            return await self._table.count(self._db, view.conversation.id) > 0
        return await self._sandboxes.is_culled(sandbox)

    async def queue(
        self, user_id: str, reference: str, message: Message, *, run: bool = True
    ) -> Queued:
        """Take a message; it is stored when this returns, and delivered in the background.

        `reference` is the id of a conversation, or `task-` and that of its start task. Raises
        NotFound, TooManyRequests when enough are waiting, QuotaExceeded for a user who may spend
        no more, and Conflict or Gone where it could never be delivered.
        """
        await check_spend(self._db, user_id)
        conversation_id = await self._resolve(user_id, reference)
        view = await self._conversations.get(user_id, conversation_id, include_starting=True)
        _require_future(view)
        pending = PendingMessage(
            id=new_id(),
            conversation_id=conversation_id,
            message=message,
            said_before=None,
            run=run,
        )

        is_running = view.sandbox_status is SandboxStatus.RUNNING
        status = SandboxStatus.RUNNING if is_running else SandboxStatus.STARTING

        async def body(tx: Transaction) -> Queued:
            waiting = await self._table.count(tx, conversation_id)
            if waiting >= MOST_PENDING:
                raise TooManyRequests(
                    f"{waiting} messages of this conversation are waiting already"
                )
            try:
                await self._table.insert(tx, pending)
            except IntegrityError as exc:
                # It was deleted since it was looked up.
                raise NotFound(f"Conversation {reference} not found") from exc
            queued = Queued(id=pending.id, position=waiting + 1, sandbox_status=status)
            await note_effect(tx, queued)
            self._announce(tx, user_id, conversation_id)
            tx.after_commit(lambda: self._wake(user_id, conversation_id))
            return queued

        return await self._db.write(body)

    async def deliver_all(self) -> None:
        """Try to deliver whatever waits; called now and then, and once after a start."""
        for user_id, conversation_id in await self._table.all_waiting(self._db):
            self._wake(user_id, conversation_id)

    def sandbox_changed(self, before: Sandbox, after: Sandbox | None) -> None:
        """Deliver when a sandbox has begun to run."""
        is_up = after is not None and after.status is SandboxStatus.RUNNING
        if is_up and before.status is not SandboxStatus.RUNNING:
            self._supervisor.spawn("pending messages of a sandbox", self.deliver_all)

    # Inside

    async def _resolve(self, user_id: str, reference: str) -> str:
        if reference.startswith(_TASK):
            task_id = parse_uuid(reference.removeprefix(_TASK))
            tasks = await self._conversations.find_start_tasks(user_id, [task_id or ""])
            found = tasks[0].conversation_id if tasks[0] else None
        else:
            found = await self._conversations.resolve(user_id, reference)
        if found is None:
            raise NotFound(f"Conversation {reference} not found")
        return found

    def _wake(self, user_id: str, conversation_id: str) -> None:
        # One that is at work already looks once more before it ends.
        self._woken.add(conversation_id)
        name = f"pending messages {conversation_id}"
        self._supervisor.spawn(name, lambda: self._deliver(user_id, conversation_id))

    async def _deliver(self, user_id: str, conversation_id: str) -> None:
        while conversation_id in self._woken:
            self._woken.discard(conversation_id)
            try:
                await self._wait_for_start(user_id, conversation_id)
                while await self._deliver_first(user_id, conversation_id):
                    pass
            except NotFound:
                # The conversation was deleted, and its messages with it.
                return

    async def _wait_for_start(self, user_id: str, conversation_id: str) -> None:
        tasks, _ = await self._conversations.search_start_tasks(
            user_id, conversation_id=conversation_id, limit=1
        )
        for task in tasks:
            async for seen in self._conversations.follow(user_id, task.id):
                if seen.status is StartStatus.READY:
                    return

    async def _deliver_first(self, user_id: str, conversation_id: str) -> bool:
        """Deliver the message that has waited longest; say whether it waits no more."""
        pending = await self._table.find_first(self._db, conversation_id)
        if pending is None:
            return False
        view = await self._conversations.get(user_id, conversation_id, include_starting=True)
        try:
            _require_future(view)
        except (Conflict, Gone) as exc:
            await self._give_up(user_id, pending, exc)
            return True
        if view.agent_url is None or view.session_api_key is None:
            await self._wake_up(view)
            return False
        agent = self._agents.at(view.agent_url, view.session_api_key)
        return await self._try(view, agent, pending)

    async def _wake_up(self, view: ConversationView) -> None:
        """Resume the sandbox of a message that waits, unless its user has paused it."""
        if view.sandbox is None or not await self._sandboxes.is_culled(view.sandbox):
            return
        try:
            await self._sandboxes.resume(
                view.sandbox.user_id, view.sandbox.id, when_full=WhenFull.QUEUE
            )
        except AgentsvcError as exc:
            log.info(
                "culled sandbox cannot be resumed for a message now",
                extra={"sandbox_id": view.sandbox.id, "reason": str(exc)},
            )

    async def _try(
        self, view: ConversationView, agent: AgentServer, pending: PendingMessage
    ) -> bool:
        user_id, asked_at = view.conversation.user_id, event_time()
        try:
            await self._hand_over(user_id, agent, pending)
        except (AgentRefused, NotFound) as exc:
            await self._give_up(user_id, pending, exc)
        except AgentsvcError as exc:
            log.info(
                "pending message cannot be delivered now",
                extra={"conversation_id": pending.conversation_id, "reason": str(exc)},
            )
            return False
        else:
            await self._db.write(lambda tx: self._forget(tx, user_id, pending, asked_at))
        return True

    async def _forget(
        self, tx: Transaction, user_id: str, pending: PendingMessage, asked_at: str
    ) -> None:
        """Remove a message that the agent has, which is at work now, whenever that is reported."""
        await self._table.delete(tx, pending.id)
        if pending.run:
            await self._table.set_run_asked(tx, pending.conversation_id, asked_at)
        self._announce(tx, user_id, pending.conversation_id)

    def _announce(self, tx: Transaction, user_id: str, conversation_id: str) -> None:
        news = Announcement(
            subject=Subject.CONVERSATION,
            user_id=user_id,
            id=conversation_id,
            conversation_id=conversation_id,
        )
        tx.after_commit(lambda: self._announcements.announce(news))

    async def _hand_over(self, user_id: str, agent: AgentServer, pending: PendingMessage) -> None:
        """Send a message, unless an earlier try that seemed to fail got through."""
        if pending.said_before is None:
            said = await _count_said(agent, pending)
            await self._db.write(lambda tx: self._table.set_said_before(tx, pending.id, said))
        else:
            # Nobody knows of an earlier try as long as the agent server holds it back for a tool.
            await agent.wait_for_earlier_changes(
                pending.conversation_id, time_limit=LONGEST_TOOL_SECONDS
            )
            if await _count_said(agent, pending) > pending.said_before:
                return
        await self._conversations.deliver_message(
            user_id, pending.conversation_id, pending.message, run=pending.run
        )

    async def _give_up(self, user_id: str, pending: PendingMessage, error: AgentsvcError) -> None:
        log.warning(
            "pending message given up",
            extra={"conversation_id": pending.conversation_id, "reason": str(error)},
        )

        async def body(tx: Transaction) -> None:
            event = not_delivered_event(pending.message, error)
            await self._events.append(tx, pending.conversation_id, [event])
            await self._table.delete(tx, pending.id)
            self._announce(tx, user_id, pending.conversation_id)

        await self._db.write(body)


def _require_future(view: ConversationView) -> None:
    """Raise Conflict or Gone for a conversation that can never take a message."""
    if view.conversation.start_failed:
        raise Conflict("The conversation did not start")
    if view.sandbox_status is SandboxStatus.MISSING:
        raise Gone(SANDBOX_GONE)


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    content: list[dict[str, Any]] = []


class _Event(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    source: str | None = None
    llm_message: _Said | None = None


_event = msgspec.json.Decoder(_Event)


async def _count_said(agent: AgentServer, pending: PendingMessage) -> int:
    wanted = text_of(to_agent_message(pending.message)["content"])
    said = 0
    try:
        async for page in agent.event_pages(pending.conversation_id):
            said += sum(_said_by_user(raw) == wanted for raw in page)
    except AgentRefused as exc:
        # It says nothing about the message.
        raise AgentUnavailable(exc.message, detail=exc.detail) from exc
    return said


def _said_by_user(raw: bytes) -> str | None:
    try:
        event = _event.decode(raw)
    except msgspec.DecodeError:
        return None
    if event.kind != "MessageEvent" or event.source != "user" or event.llm_message is None:
        return None
    return text_of(event.llm_message.content)


def _from_row(row: Row) -> PendingMessage:
    return PendingMessage(
        id=row["id"],
        conversation_id=row["conversation_id"],
        message=_message.decode(row["message"]),
        said_before=row["said_before"],
        run=bool(row["run"]),
    )
