"""Creates runs for due times, and starts conversations for runs.

A due time becomes a run, whose key it is, in the transaction that sets the automation's next due
time. A run is claimed in the transaction that creates its start task. So a crash between two
steps loses and duplicates nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    InvalidRequest,
    SandboxLimitReached,
    StorageFailed,
    now,
    to_stored,
    wait_within,
)
from agentsvc.extension.conversations import StartTask, check_may_run
from agentsvc.extension.server import Server
from agentsvc.extension.storage import Transaction

from .clock import ClockWatch, reset_future_times
from .config import AutomationsConfig
from .cron import parse_cron
from .ending import RunEnd, disabled, ended, new_run, stop_run, store_end
from .host_events import HostEvent
from .issue_hosts import RETRIED_FOR, TRANSIENT, retry_seconds
from .issue_start import EventIgnored, IssueStarter, order_of
from .model import (
    Automation,
    Concurrency,
    CronTrigger,
    Definition,
    GitTrigger,
    Missed,
    Run,
    RunStatus,
    Source,
)
from .prompt import fill
from .service import MAX_WAITING
from .table import AutomationTable, RunTable, payload_context

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 5.0
"""How long a change of the clock may go unnoticed."""

_BATCH: Final = 50
_MAX_AT_HOSTS: Final = 10
"""Number of runs per user that may call their git hosts at a time."""
_MAX_DUE: Final = 100
_POSTPONED_BY: Final = timedelta(seconds=10)
_TRANSIENT: Final = (SandboxLimitReached, CapacityExceeded, StorageFailed, BackendUnavailable)
"""Errors that are not about the automation: the run is postponed."""
_UNEXPECTED: Final = "An unexpected error; the server's log has the details"


class _AlreadyTaken(Exception):
    """The run cannot be started now: it was started or ended already, or another run has started."""


class Scheduler:
    """Creates and starts runs, at once when woken; `on_begin` gets the conversation's id of each."""

    def __init__(
        self,
        server: Server,
        config: AutomationsConfig,
        wake: asyncio.Event,
        starter: IssueStarter,
        on_begin: Callable[[str], None],
    ) -> None:
        self._db = server.database
        self._server = server
        self._late = timedelta(seconds=config.late_seconds)
        self._starter = starter
        self._at_hosts: dict[str, str] = {}
        """Users of the runs that are calling their git hosts, by run id."""
        self._on_begin = on_begin
        self._wake = wake
        self._clock = ClockWatch()

    async def start_due(self) -> None:
        """Start what is due, then wait until more may be due; to be called in a loop."""
        self._wake.clear()
        jump = self._clock.jump()
        if jump is None or jump < -1:
            await reset_future_times(self._db, now())
        while await self._make_runs():
            pass
        # The wait below covers what falls due from here on.
        moment = now()
        while await self._begin_runs():
            pass
        waits = (await AutomationTable.next_at(self._db), await RunTable.next_at(self._db, moment))
        seconds = [(due - moment).total_seconds() for due in waits if due is not None]
        await wait_within(self._wake, max(0.0, min([*seconds, POLL_SECONDS])))

    async def _make_runs(self) -> bool:
        """Create runs for a batch of due automations; return whether there were any."""
        moment = now()
        next_at = await AutomationTable.next_at(self._db)
        if next_at is None or next_at > moment:
            return False

        async def body(tx: Transaction) -> bool:
            due = await AutomationTable.due(tx, moment, _BATCH)
            for automation in due:
                await self._make_runs_of(tx, automation, moment)
            return bool(due)

        return await self._db.write(body)

    async def _make_runs_of(
        self, tx: Transaction, automation: Automation, moment: datetime
    ) -> None:
        trigger, first = automation.definition.trigger, automation.next_at or moment
        due: list[datetime] = [first]
        following: datetime | None = None
        if isinstance(trigger, CronTrigger):
            try:
                cron = parse_cron(trigger.schedule, trigger.timezone)
            except InvalidRequest as exc:
                # The machine may have lost the time zone.
                reason = f"Its schedule cannot be read any more: {exc.message}"
                await AutomationTable.update(tx, disabled(automation, reason))
                return
            due = cron.find_latest(first, moment, _MAX_DUE)
            following = cron.find_next(max(moment, first))
        chosen, skipped = choose(automation.definition, due, moment - self._late)
        waiting = await RunTable.count_waiting(tx, automation.id)
        for number, due_at in enumerate(chosen, waiting):
            why_not = f"{MAX_WAITING} runs of it are pending" if number >= MAX_WAITING else ""
            await _add_scheduled(tx, automation, due_at, why_not)
        if skipped is not None:
            detail = "It was due while the server was down"
            await _add_scheduled(tx, automation, skipped, detail)
        triggered_at = moment if chosen else automation.last_triggered_at
        await AutomationTable.update(
            tx,
            msgspec.structs.replace(automation, next_at=following, last_triggered_at=triggered_at),
        )

    async def _begin_runs(self) -> bool:
        """Start a batch of due runs; return whether there were any."""
        busy = [user_id for user_id in set(self._at_hosts.values()) if self._is_busy(user_id)]
        limit = _BATCH + len(self._at_hosts)
        startable = await RunTable.startable(self._db, now(), limit, but_of=busy)
        runs = [run for run in startable if run.id not in self._at_hosts]
        for run in runs:
            if not self._is_busy(run.user_id):
                await self._begin(run)
        return bool(runs)

    def _is_busy(self, user_id: str) -> bool:
        return list(self._at_hosts.values()).count(user_id) >= _MAX_AT_HOSTS

    async def _begin(self, run: Run) -> None:
        automation = await AutomationTable.find(self._db, run.automation_id)
        if automation is None:
            return
        running = await RunTable.running(self._db, automation.id)
        if running and automation.definition.concurrency is not Concurrency.REPLACE:
            await self._skip(run, "Another run was in progress")
        elif automation.definition.is_at_host:
            self._at_hosts[run.id] = run.user_id
            ask = partial(self._ask_host, automation, run, running)
            self._server.supervisor.spawn(f"begin of run {run.id}", ask)
        else:
            await self._try_begin(automation, run, running)

    async def _ask_host(self, automation: Automation, run: Run, running: Sequence[Run]) -> None:
        try:
            await self._try_begin(automation, run, running)
        finally:
            del self._at_hosts[run.id]
        # Not after an exception, which would recur at once.
        self._wake.set()

    async def _try_begin(self, automation: Automation, run: Run, running: Sequence[Run]) -> None:
        """Start a run in place of the running ones, or store why it was not started."""
        try:
            for other in running:
                await stop_run(self._server.messages, other)
                run_end = RunEnd(status=RunStatus.CANCELLED, detail="A later run has replaced it")
                await self._end_run(other, run_end)
            await self._start(automation, run)
        except _AlreadyTaken:
            return
        except EventIgnored as exc:
            await self._skip(run, str(exc))
        except (*_TRANSIENT, *TRANSIENT) as exc:
            await self._postpone(run, exc)
        except AgentsvcError as exc:
            await self._end_run(run, RunEnd(status=RunStatus.FAILED, detail=exc.message))
        except OSError as exc:
            # The machine is temporarily out of space or file descriptors.
            await self._postpone(run, BackendUnavailable(f"This machine is at its limits: {exc}"))
        except Exception:
            # A retry would fail again and block the runs behind it.
            log.exception(
                "automation run failed to start", extra={"automation_id": run.automation_id}
            )
            await self._end_run(run, RunEnd(status=RunStatus.FAILED, detail=_UNEXPECTED))

    async def _postpone(self, run: Run, exc: AgentsvcError) -> None:
        """Retry a run later; if its git host fails, for at most `RETRIED_FOR`."""
        moment, wait, until = now(), _POSTPONED_BY, None
        if isinstance(exc, TRANSIENT):
            wait = timedelta(seconds=retry_seconds(exc))
            # Not counted from its creation, since it may have waited for its turn.
            until = run.timeout_at or moment + RETRIED_FOR
            if moment > until:
                await self._end_run(run, RunEnd(status=RunStatus.FAILED, detail=exc.message))
                return
        later = msgspec.structs.replace(
            run, due_at=moment + wait, error_detail=exc.message, timeout_at=until
        )
        await self._db.write(lambda tx: RunTable.change(tx, later, since=RunStatus.PENDING))
        extra = {"automation_id": run.automation_id, "reason": exc.message}
        log.warning("automation run postponed", extra=extra)

    async def _start(self, automation: Automation, run: Run) -> None:
        replaces = automation.definition.concurrency is Concurrency.REPLACE

        async def claim(tx: Transaction, conversation_id: str) -> None:
            await check_may_run(tx, run.user_id)
            if not replaces and await RunTable.running(tx, automation.id):
                # Another run has started during the calls to the host.
                raise _AlreadyTaken
            begun = msgspec.structs.replace(
                run,
                status=RunStatus.RUNNING,
                conversation_id=conversation_id,
                error_detail="",
                started_at=now(),
                timeout_at=None,
            )
            if not await RunTable.change(tx, begun, since=RunStatus.PENDING):
                raise _AlreadyTaken

        async def claim_task(tx: Transaction, task: StartTask) -> None:
            await claim(tx, task.conversation_id)

        payload = await self._payload(run)
        if isinstance(automation.definition.trigger, GitTrigger):
            event = msgspec.convert(payload, HostEvent)
            begun = await self._starter.begin(automation, run, event, claim)
        elif automation.definition.pull_request:
            begun = await self._starter.begin_changes(automation, run, payload, claim)
        else:
            definition = automation.definition
            prompt = definition.prompt and fill(definition.prompt, payload, run.due_at)
            order = order_of(definition, prompt)
            task = await self._server.conversations.starts.start(
                run.user_id, order, claim=claim_task
            )
            begun = task.conversation_id
        self._on_begin(begun)

    async def _payload(self, run: Run) -> Any:
        """Return the payload that made a run due, None for a schedule or a user."""
        sealed = await RunTable.find_sealed(self._db, run.id)
        if sealed is None:
            return None
        context = payload_context(run.automation_id)
        return msgspec.json.decode(self._server.vault.unseal(sealed, context))

    async def _skip(self, run: Run, detail: str) -> None:
        over = ended(run, RunEnd(status=RunStatus.SKIPPED, detail=detail))
        await self._db.write(lambda tx: RunTable.change(tx, over, since=RunStatus.PENDING))

    async def _end_run(self, run: Run, run_end: RunEnd) -> None:
        await self._db.write(lambda tx: store_end(tx, self._server.events, run, run_end))


def choose(
    definition: Definition, due: list[datetime], late: datetime
) -> tuple[list[datetime], datetime | None]:
    """Return the due times that become runs, and one to record as skipped or None.

    Due times before `late` count as missed.
    """
    missed = [due_at for due_at in due if due_at < late]
    on_time = [due_at for due_at in due if due_at >= late]
    made_up: list[datetime] = []
    if definition.missed is Missed.ALL:
        made_up = missed[-definition.most_missed :]
    elif definition.missed is Missed.ONCE and not on_time:
        made_up = missed[-1:]
    return made_up + on_time, missed[-1] if missed and not made_up and not on_time else None


async def _add_scheduled(
    tx: Transaction, automation: Automation, due_at: datetime, why_not: str
) -> None:
    key = f"due:{to_stored(due_at)}"
    run = new_run(automation, key=key, source=Source.SCHEDULE, due_at=due_at)
    end = RunEnd(status=RunStatus.SKIPPED, detail=why_not)
    await RunTable.add(tx, ended(run, end) if why_not else run)
