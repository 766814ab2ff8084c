"""Asks git hosts what has changed, for automations whose host cannot reach this server.

What is found becomes a run by the same key as a delivery of it, and how far a host was asked is stored
afterwards. So both may be on, and a kill in between does nothing twice.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, new_id, now, parse_time
from agentsvc.extension.server import Server
from agentsvc.extension.storage import Transaction

from .ending import RunEnd, ended, new_run
from .host_calls import HostCalls
from .host_events import HostEvent, event_of, events_of_issue, relevant
from .hosts import Kind
from .issue_hosts import TRANSIENT, IssueHosts, retry_seconds
from .model import Automation, GitSubject, GitTrigger, RunStatus, Source, WorkItem
from .service import Automations
from .table import AutomationTable, RunTable
from .work_table import Poll, PollTable, WorkTable

log = logging.getLogger(__name__)

_PAUSE_SECONDS: Final = 30.0


class Poller:
    """Asks hosts when it is time."""

    def __init__(
        self,
        server: Server,
        hosts: IssueHosts,
        automations: Automations,
        *,
        known_for: timedelta | None,
    ) -> None:
        self._db = server.database
        self._supervisor = server.supervisor
        self._hosts = hosts
        self._automations = automations
        self._known_for = known_for
        """How long it is known what runs there were; None for ever."""

    async def poll_due(self) -> None:
        """Begin to ask the hosts whose time has come; those of one user hold up no other's."""
        due = sorted(await PollTable.due(self._db, now()), key=attrgetter("user_id"))
        for user_id, polls in groupby(due, key=attrgetter("user_id")):
            work = partial(self._poll_each, tuple(polls))
            self._supervisor.spawn(f"git host polling of user {user_id}", work)

    async def _poll_each(self, polls: Sequence[Poll]) -> None:
        for poll in polls:
            automation = await AutomationTable.find(self._db, poll.automation_id)
            trigger = automation.definition.trigger if automation else None
            if automation is None or not isinstance(trigger, GitTrigger):
                continue
            try:
                await self._poll(automation, trigger, poll)
            except AgentsvcError as exc:
                # What was found cannot be stored, nor when to ask again.
                extra = {"automation_id": automation.id, "reason": exc.message}
                log.warning("git host polling postponed", extra=extra)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _poll(self, automation: Automation, trigger: GitTrigger, poll: Poll) -> None:
        seconds = float(trigger.poll_seconds or 0)
        after = poll
        try:
            after = await self._ask(automation, trigger, poll)
        except AgentsvcError as exc:
            if exc.message != poll.trouble:
                extra = {"automation_id": automation.id, "reason": exc.message}
                log.warning("git host not asked for changes", extra=extra)
            if not isinstance(exc, TRANSIENT):
                after = msgspec.structs.replace(poll, trouble=exc.message)
            seconds = max(seconds, retry_seconds(exc))
        except Exception:
            # Whatever a host has made go wrong, the others are asked.
            log.exception("git host not asked", extra={"automation_id": automation.id})
        due_at = now() + timedelta(seconds=seconds)

        async def store(tx: Transaction) -> None:
            await PollTable.store(tx, after, due_at)
            if after.trouble and after.trouble != poll.trouble:
                # Nobody is told otherwise: nothing that could fail has begun.
                run = new_run(automation, key=f"poll:{new_id()}", source=Source.SCHEDULE)
                detail = f"The host was asked for changes: {after.trouble}"
                await RunTable.add(tx, ended(run, RunEnd(status=RunStatus.FAILED, detail=detail)))

        await self._db.write(store)

    async def _ask(self, automation: Automation, trigger: GitTrigger, poll: Poll) -> Poll:
        events: list[HostEvent] = []
        since, etag = poll.since, poll.etag
        is_about_pulls = trigger.on is GitSubject.PULL_REQUEST
        async with self._hosts.calls(automation) as calls:
            issues, etag = await calls.changed(since, etag, pulls=is_about_pulls)
            for issue in issues:
                if issue.get("pull"):
                    continue
                if trigger.on is not GitSubject.REQUEST:
                    since = max(since, issue.get("at") or issue["created"])
                    if self._is_new(issue["created"], poll):
                        number = issue["number"]
                        opened = HostEvent(kind=Kind.OPENED, number=number, is_pull=is_about_pulls)
                        events += relevant(trigger, opened)
                    continue
                comments = await calls.comments(issue["number"]) if trigger.mention else []
                later = [one for one in comments if _is_after(one["at"], automation.created_at)]
                events += events_of_issue(trigger, issue, later)
                since = max(since, issue["at"])
            for work in await WorkTable.all_open(self._db, automation.id):
                events += await _of_pull(trigger, work, calls)
        await self._automations.record_events(automation.id, events)
        await self._db.write(lambda tx: WorkTable.schedule_check(tx, automation.id, now()))
        is_same = since == poll.since
        return msgspec.structs.replace(poll, since=since, etag=etag if is_same else "", trouble="")

    def _is_new(self, created: str, poll: Poll) -> bool:
        """Whether something was opened since the host was asked, and not so long ago that its run is forgotten."""
        since = parse_time(poll.since)
        is_known = self._known_for is None or _is_after(created, now() - self._known_for)
        return is_known and (since is None or _is_after(created, since))


async def _of_pull(trigger: GitTrigger, work: WorkItem, calls: HostCalls) -> list[HostEvent]:
    """Return what has happened to the pull request of a work."""
    if work.pull is None:
        return []
    found = [
        event_of(
            one,
            Kind.REVIEW if one.get("path") or one.get("review") else Kind.COMMENT,
            number=work.pull,
            is_pull=True,
        )
        for one in await calls.pull_comments(work.pull)
    ]
    if work.head and await calls.failed_checks(work.head):
        found.append(HostEvent(kind=Kind.CHECK, id=work.head))
    return [one for event in found for one in relevant(trigger, event)]


def _is_after(text: str, moment: datetime) -> bool:
    at = parse_time(text)
    return at is not None and at >= moment.replace(microsecond=0)
