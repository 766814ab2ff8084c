"""Durable queue of messages and commands to agents: delivered in order, each exactly once.

A message is deleted once the agent has it. If it cannot be delivered, the conversation gets an
error event with its text, so that no accepted message is lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from agentsvc.accounts import check_spend
from agentsvc.agentserver import AgentServer
from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    Conflict,
    Gone,
    NotFound,
    OrderRejected,
    Supervisor,
    TooManyRequests,
    Unsupported,
    new_id,
    parse_uuid,
)
from agentsvc.conversations import message_queue_table as table
from agentsvc.conversations.event_ingestor import error_event, event_time, state_request_event
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.message_delivery import deliver_once, pending_actions
from agentsvc.conversations.message_queue_table import (
    ANSWERS,
    ORDERED,
    Lane,
    PendingKind,
    PendingMessage,
    lane_of,
    lanes_behind,
)
from agentsvc.conversations.model import SANDBOX_GONE, ConversationView
from agentsvc.conversations.service import Conversations
from agentsvc.conversations.starting.agent_request import text_of, to_agent_message
from agentsvc.conversations.stores import ConversationStores
from agentsvc.domain import ExecutionStatus, Message, StartStatus, WhenFull, message_of
from agentsvc.sandboxes import Sandbox, Sandboxes, SandboxStatus
from agentsvc.storage import Transaction, is_watched, note_effect

log = logging.getLogger(__name__)

MAX_PENDING: Final = 10
"""How many messages may be queued in a conversation that is not ready."""
MAX_WAITING: Final = 100
"""How many messages of one lane may wait while the agent uses a tool."""

NOT_DELIVERED: Final = "MessageNotDelivered"

_MAX_SHOWN: Final = 100_000
_TASK: Final = "task-"
_SPENDING: Final = (PendingKind.MESSAGE, PendingKind.ACCEPT, PendingKind.RUN)


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A queued message; positions count from 1."""

    id: str
    position: int
    sandbox_status: SandboxStatus
    """RUNNING, or STARTING if the sandbox has to start first."""


class _Cancelled(AgentsvcError):
    """A message was cancelled before its delivery."""


class MessageQueue(msgspec.Struct, kw_only=True, eq=False):
    """Accepts messages and commands of users, and delivers each as soon as possible."""

    stores: ConversationStores
    conversations: Conversations
    sandboxes: Sandboxes
    events: EventLog
    supervisor: Supervisor
    wait_seconds: float
    """How long callers wait for the result of a delivery."""
    _woken: set[tuple[str, Lane]] = set()
    _callers: dict[str, asyncio.Future[None]] = {}
    """Callers that wait for the result of a delivery, by message id."""

    async def send(
        self, user_id: str, conversation_id: str, message: Message, *, run: bool
    ) -> SandboxStatus:
        """Store a message and deliver it; return the status of its sandbox.

        An agent that uses a tool gets it after the tool call, which is waited for only
        `wait_seconds`. It is queued while earlier messages wait, and if an idle rule has paused the
        sandbox, which is resumed then. Raises as `Conversations.require_agent` and `queue`,
        AgentRefused, and AgentUnavailable if nothing could be sent.
        """
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        if await self._has_to_queue(view):
            queued = await self.queue(user_id, conversation_id, message, run=run, most=MAX_WAITING)
            return queued.sandbox_status
        self.conversations.require_agent(view)
        await check_spend(self.stores.db, user_id)
        pending = _new(view, PendingKind.MESSAGE, message, run=run)
        await self._store_and_wait(view, pending)
        return view.sandbox_status

    async def tell(
        self,
        user_id: str,
        conversation_id: str,
        kind: PendingKind,
        *,
        reason: str = "",
        state: str = "",
    ) -> None:
        """Answer a confirmation request of the agent, stop it or run it; stored before delivery.

        An answer is for the actions that wait for confirmation now. The `state` that a V0 client
        requested is stored with it as an event in the history. Raises as `send`, and Conflict if
        the agent runs already or does not wait for such an answer any more.
        """
        if kind in _SPENDING:
            await check_spend(self.stores.db, user_id)
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        agent = self.conversations.require_agent(view)
        about = await pending_actions(agent, conversation_id) if kind in ANSWERS else ()
        pending = _new(view, kind, message_of(reason), run=kind in _SPENDING, about=about)
        await self._store_and_wait(view, pending, [state_request_event(state)] if state else [])

    async def roll_back(
        self, user_id: str, conversation_id: str, checkpoint_id: str, message: Message
    ) -> None:
        """Restore all files of a conversation's sandbox from a checkpoint, and tell its agent.

        The request is stored first and repeated after an interruption, so that the agent gets
        `message` if, and only if, the files were restored. Raises as
        `Conversations.restore_checkpoint`, and Conflict while messages wait.
        """
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        await self.conversations.check_rollback(view, checkpoint_id)
        if await table.count(self.stores.db, view.conversation.id, ORDERED):
            raise Conflict("Messages are queued: wait until they are delivered, or cancel them")
        pending = _new(view, PendingKind.ROLLBACK, message, run=False, about=(checkpoint_id,))
        await self._store_and_wait(view, pending)

    async def say_later(
        self,
        user_id: str,
        pending: PendingMessage,
        *,
        claim: Callable[[Transaction], Awaitable[None]] | None = None,
    ) -> None:
        """Queue a message without limit or wait; idempotent by its id while it waits.

        `claim` runs in the transaction that stores it, and rolls that back by raising.
        """

        async def body(tx: Transaction) -> None:
            if claim is not None:
                await claim(tx)
            await table.insert(tx, pending)
            lane = lane_of(pending.kind)
            tx.after_commit(lambda: self._wake(user_id, pending.conversation_id, lane))

        await self.stores.db.write(body)

    async def _has_to_queue(self, view: ConversationView) -> bool:
        """Return whether a message waits for earlier ones, or for a culled sandbox to resume."""
        sandbox = view.sandbox
        if sandbox is None or not view.conversation.is_ready:
            return False
        if await self._is_culled(view):
            return True
        is_up = sandbox.status in (SandboxStatus.STARTING, SandboxStatus.RUNNING)
        return is_up and await table.count(self.stores.db, view.conversation.id, ORDERED) > 0

    async def queue(
        self,
        user_id: str,
        reference: str,
        message: Message,
        *,
        run: bool = True,
        most: int = MAX_PENDING,
    ) -> Queued:
        """Store a message for delivery in the background; return its position.

        `reference` is the id of a conversation, or `task-` and the id of its start task. Raises
        NotFound, TooManyRequests if `most` messages wait, QuotaExceeded if the user may spend no
        more, and Conflict or Gone if it can never be delivered.
        """
        await check_spend(self.stores.db, user_id)
        view = await self._find(user_id, reference)
        _require_deliverable(view)
        return await self._store(view, _new(view, PendingKind.MESSAGE, message, run=run), most)

    async def waiting(self, user_id: str, reference: str) -> list[PendingMessage]:
        """Return the queued messages in their order; `reference` as for `queue`."""
        view = await self._find(user_id, reference)
        return await table.messages(self.stores.db, view.conversation.id)

    async def cancel(self, user_id: str, reference: str, message_id: str) -> None:
        """Delete a queued message; raises NotFound, and Conflict after the first attempt."""
        view = await self._find(user_id, reference)

        async def body(tx: Transaction) -> PendingMessage:
            messages = await table.messages(tx, view.conversation.id)
            found = next((one for one in messages if one.id == message_id), None)
            if found is None:
                raise NotFound("No such message is queued; it may have been delivered")
            if found.is_tried:
                raise Conflict("This message was sent to the agent, which reads it after its step")
            await self._forget(tx, user_id, found)
            return found

        self._settle(await self.stores.db.write(body))

    async def deliver_all(self) -> None:
        """Deliver all queued messages; called periodically, and once after a start."""
        for user_id, conversation_id, kind in await table.all_waiting(self.stores.db):
            self._wake(user_id, conversation_id, lane_of(kind))

    def sandbox_changed(self, before: Sandbox, after: Sandbox | None) -> None:
        """Deliver queued messages after a sandbox has started to run."""
        is_up = after is not None and after.status is SandboxStatus.RUNNING
        if is_up and before.status is not SandboxStatus.RUNNING:
            self.supervisor.spawn("pending messages of a sandbox", self.deliver_all)

    async def _store(
        self,
        view: ConversationView,
        pending: PendingMessage,
        most: int,
        events: Sequence[bytes] = (),
    ) -> Queued:
        """Store a message, with events about it, before its delivery.

        Raises TooManyRequests if `most` messages of its lane wait, and NotFound.
        """
        conversation_id, lane = pending.conversation_id, lane_of(pending.kind)
        is_running = view.sandbox_status is SandboxStatus.RUNNING
        status = SandboxStatus.RUNNING if is_running else SandboxStatus.STARTING

        async def body(tx: Transaction) -> Queued:
            waiting = await table.count(tx, conversation_id, lane)
            if waiting >= most:
                raise TooManyRequests(
                    f"{waiting} messages of this conversation are waiting already"
                )
            await table.insert(tx, pending)
            await self.events.append(tx, conversation_id, events)
            queued = Queued(id=pending.id, position=waiting + 1, sandbox_status=status)
            await note_effect(tx, queued)
            user_id = view.conversation.user_id
            self.stores.conversations.announce(tx, user_id, conversation_id)
            tx.after_commit(lambda: self._wake(user_id, conversation_id, lane))
            return queued

        return await self.stores.db.write(body)

    async def _store_and_wait(
        self, view: ConversationView, pending: PendingMessage, events: Sequence[bytes] = ()
    ) -> None:
        """Store a message, and wait up to `wait_seconds` for its delivery; raises its error.

        After a timeout it stays queued. If the response to an idempotent request is stored with it,
        return at once, because the stored response cannot depend on the delivery.
        """
        if is_watched():
            await self._store(view, pending, MAX_WAITING, events)
            return
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._callers[pending.id] = outcome
        try:
            await self._store(view, pending, MAX_WAITING, events)
            await asyncio.wait([outcome], timeout=self.wait_seconds)
        finally:
            is_taken = self._callers.pop(pending.id, None) is not None
        if is_taken and not outcome.done():
            log.info(
                "message waits for the running tool call",
                extra={"conversation_id": view.conversation.id},
            )
        else:
            await outcome

    async def _find(self, user_id: str, reference: str) -> ConversationView:
        """Return a conversation of a user by `reference` as for `queue`; raises NotFound."""
        if reference.startswith(_TASK):
            task_id = parse_uuid(reference.removeprefix(_TASK))
            tasks = await self.conversations.starts.find_many(user_id, [task_id or ""])
            found = tasks[0].conversation_id if tasks[0] else None
        else:
            found = await self.conversations.resolve(user_id, reference)
        if found is None:
            raise NotFound(f"Conversation {reference} not found")
        return await self.conversations.get(user_id, found, include_starting=True)

    def _wake(self, user_id: str, conversation_id: str, lane: Lane) -> None:
        # A delivery task that is already running checks this set again before it ends.
        self._woken.add((conversation_id, lane))
        name = f"pending {lane[0]} {conversation_id}"
        self.supervisor.spawn(name, lambda: self._deliver(user_id, conversation_id, lane))

    async def _deliver(self, user_id: str, conversation_id: str, lane: Lane) -> None:
        while (conversation_id, lane) in self._woken:
            self._woken.discard((conversation_id, lane))
            try:
                if lane is ORDERED:
                    await self._wait_for_start(user_id, conversation_id)
                while await self._deliver_first(user_id, conversation_id, lane):
                    pass
            except NotFound:
                # The conversation was deleted, and its queued messages with it.
                return

    async def _wait_for_start(self, user_id: str, conversation_id: str) -> None:
        task = await self.stores.tasks.find_of_conversation(conversation_id)
        if task is not None:
            async for seen in self.conversations.starts.follow(user_id, task.id):
                if seen.status is StartStatus.READY:
                    return

    async def _deliver_first(self, user_id: str, conversation_id: str, lane: Lane) -> bool:
        """Deliver the oldest message of a lane; return whether it has left the queue."""
        pending = await table.find_first(self.stores.db, conversation_id, lane)
        if pending is None:
            return False
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        try:
            _require_deliverable(view)
        except (Conflict, Gone) as exc:
            await self._fail(user_id, pending, exc)
            return True
        if pending.kind is PendingKind.ROLLBACK:
            return await self._roll_back_files(view, pending)
        if view.sandbox is None:
            return False
        with self.sandboxes.usage.hold(view.sandbox.id):
            # From here on no idle rule pauses it; one may have done so just before.
            view = await self._view_of(view)
            if await self._is_culled(view):
                await self._resume_culled(view)
                # If the pause has not begun, or has failed, the sandbox runs already.
                view = await self._view_of(view)
            agent = self.sandboxes.agent_of(view.sandbox)
            if agent is None or await self._is_culled(view):
                return False
            return await self._deliver_to(view, agent, pending)

    async def _view_of(self, view: ConversationView) -> ConversationView:
        """Read the conversation again."""
        found = view.conversation
        return await self.conversations.get(found.user_id, found.id, include_starting=True)

    async def _is_culled(self, view: ConversationView) -> bool:
        return view.sandbox is not None and await self.sandboxes.idle.is_culled(view.sandbox)

    async def _resume_culled(self, view: ConversationView) -> None:
        """Resume the sandbox if an idle rule has paused it; not if its user has."""
        if view.sandbox is None or not await self._is_culled(view):
            return
        try:
            await self.sandboxes.resume(
                view.sandbox.user_id, view.sandbox.id, when_full=WhenFull.QUEUE
            )
        except AgentsvcError as exc:
            log.info(
                "culled sandbox cannot be resumed for a message now",
                extra={"sandbox_id": view.sandbox.id, "reason": str(exc)},
            )

    async def _roll_back_files(self, view: ConversationView, pending: PendingMessage) -> bool:
        """Restore files and turn the roll-back into a message; return False to retry later."""
        user_id, [checkpoint_id] = view.conversation.user_id, pending.about
        try:
            await self.conversations.restore_checkpoint(view, checkpoint_id)
        except (NotFound, Conflict, Gone, Unsupported, OrderRejected) as exc:
            await self._fail(user_id, pending, exc)
            await self._resume_culled(await self._view_of(view))
            return True
        except AgentsvcError as exc:
            self._log_retry(pending, exc)
            return False

        async def body(tx: Transaction) -> None:
            await table.set_rolled_back(tx, pending.id)
            # An earlier request to run the agent is void.
            await table.set_run_asked(tx, pending.conversation_id, "")

        await self.stores.db.write(body)
        self._settle(pending)
        return True

    async def _take_checkpoint(self, view: ConversationView, pending: PendingMessage) -> None:
        """Take a checkpoint of the files before a message starts an agent that does not run."""
        begins = pending.kind is PendingKind.MESSAGE and pending.run
        is_at_work = view.conversation.execution_status is ExecutionStatus.RUNNING
        if begins and not is_at_work and view.sandbox is not None:
            await self.sandboxes.checkpoints.take(view.sandbox)

    async def _deliver_to(
        self, view: ConversationView, agent: AgentServer, pending: PendingMessage
    ) -> bool:
        """Deliver a message; return whether it has left the queue."""
        user_id, asked_at, is_tried = view.conversation.user_id, event_time(), pending.is_tried

        async def begin(last_event: str) -> bool:
            nonlocal is_tried
            await self._take_checkpoint(view, pending)
            is_to_run = await self.stores.db.write(lambda tx: table.begin(tx, pending, last_event))
            if is_to_run is None:
                raise _Cancelled("The message was cancelled")
            is_tried = True
            return is_to_run

        try:
            await deliver_once(agent, pending, begin)
        except _Cancelled:
            return True
        except (AgentRefused, NotFound, Conflict) as exc:
            await self._fail(user_id, pending, exc)
        except AgentUnavailable as exc:
            if not is_tried and pending.id in self._callers:
                # Nothing was sent, and the waiting caller can retry.
                await self._fail(user_id, pending, exc)
                return True
            self._log_retry(pending, exc)
            return False
        except AgentsvcError as exc:
            self._log_retry(pending, exc)
            return False
        else:
            used_id = view.conversation.sandbox_id
            asked, wanted_id = (asked_at, used_id) if pending.run else (None, None)

            async def body(tx: Transaction) -> None:
                await self._forget(tx, user_id, pending, asked)
                await self.conversations.archives.forget_rest(tx, wanted_id)

            await self.stores.db.write(body)
            self.conversations.note_message_sent(view)
            self._settle(pending)
        return True

    async def _forget(
        self,
        tx: Transaction,
        user_id: str,
        pending: PendingMessage,
        run_asked_at: str | None = None,
    ) -> None:
        """Delete a message from the queue and wake the lanes behind it.

        `run_asked_at` is when the agent was told to run, if it was.
        """
        await table.delete(tx, pending.id)
        for lane in lanes_behind(pending.kind):
            tx.after_commit(partial(self._wake, user_id, pending.conversation_id, lane))
        if run_asked_at is not None:
            await table.set_run_asked(tx, pending.conversation_id, run_asked_at)
        self.stores.conversations.announce(tx, user_id, pending.conversation_id)

    def _log_retry(self, pending: PendingMessage, error: AgentsvcError) -> None:
        log.info(
            "pending message cannot be delivered now",
            extra={"conversation_id": pending.conversation_id, "reason": str(error)},
        )

    async def _fail(self, user_id: str, pending: PendingMessage, error: AgentsvcError) -> None:
        """Delete an undeliverable message; report it to its caller, or in the conversation."""
        if pending.is_tried:
            # It may have been delivered: report that in the conversation, not to the caller.
            self._settle(pending)
        caller = self._callers.pop(pending.id, None)
        if caller is None:
            await self._give_up(user_id, pending, error)
            return
        try:
            await self.stores.db.write(lambda tx: self._forget(tx, user_id, pending))
        finally:
            if not caller.done():
                caller.set_exception(error)

    def _settle(self, pending: PendingMessage) -> None:
        caller = self._callers.pop(pending.id, None)
        if caller is not None and not caller.done():
            caller.set_result(None)

    async def _give_up(self, user_id: str, pending: PendingMessage, error: AgentsvcError) -> None:
        log.warning(
            "pending message cannot be delivered",
            extra={
                "conversation_id": pending.conversation_id,
                "kind": str(pending.kind),
                "reason": str(error),
            },
        )

        async def body(tx: Transaction) -> None:
            event = error_event(NOT_DELIVERED, _explain(pending, error))
            await self.events.append(tx, pending.conversation_id, [event])
            await self._forget(tx, user_id, pending)

        await self.stores.db.write(body)


def _explain(pending: PendingMessage, error: AgentsvcError) -> str:
    """Return the text of the error event for a message that was not delivered."""
    if pending.kind is PendingKind.ROLLBACK:
        return f"The files could not be restored: {error.message}"
    is_message = pending.kind in (PendingKind.MESSAGE, PendingKind.RECORDED)
    what = "A message" if is_message else f"The command `{pending.kind}`"
    is_unknown = pending.is_tried and not isinstance(error, AgentRefused)
    outcome = "may or may not have reached the agent" if is_unknown else "could not be delivered"
    text = text_of(to_agent_message(pending.message)["content"])[:_MAX_SHOWN]
    return f"{what} {outcome}: {error.message}" + (f"\nThe message was:\n{text}" if text else "")


def _new(
    view: ConversationView,
    kind: PendingKind,
    message: Message,
    *,
    run: bool = True,
    about: Sequence[str] = (),
) -> PendingMessage:
    return PendingMessage(
        id=new_id(),
        conversation_id=view.conversation.id,
        kind=kind,
        message=message,
        run=run,
        about=tuple(about),
    )


def _require_deliverable(view: ConversationView) -> None:
    """Raise Conflict or Gone for a conversation that can never receive a message."""
    if view.conversation.start_failed:
        raise Conflict("The conversation did not start")
    if view.sandbox_status is SandboxStatus.MISSING:
        raise Gone(SANDBOX_GONE)
