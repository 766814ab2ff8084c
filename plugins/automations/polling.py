"""Polls git hosts for changes, for automations whose host cannot reach this server.

A polled event becomes a run with the same key as a delivery of it, and the position of the poll is
stored afterwards. So polling and webhooks may be combined, and a crash in between duplicates nothing.
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
    """Polls the hosts of automations at their intervals."""

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
        """How long finished runs, and so the keys of their events, are stored; None for ever."""

    async def poll_due(self) -> None:
        """Start polling the hosts that are due; the hosts of one user do not delay another's."""
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
                # The result could not be stored, nor the time of the next poll.
                extra = {"automation_id": automation.id, "reason": exc.message}
                log.warning("git host polling postponed", extra=extra)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _poll(self, automation: Automation, trigger: GitTrigger, poll: Poll) -> None:
        seconds = float(trigger.poll_seconds or 0)
        after = poll
        try:
            after = await self._fetch_changes(automation, trigger, poll)
        except AgentsvcError as exc:
            if exc.message != poll.trouble:
                extra = {"automation_id": automation.id, "reason": exc.message}
                log.warning("git host polling failed", extra=extra)
            if not isinstance(exc, TRANSIENT):
                after = msgspec.structs.replace(poll, trouble=exc.message)
            seconds = max(seconds, retry_seconds(exc))
        except Exception:
            # A fault with one host must not stop the polling of others.
            log.exception("git host polling failed", extra={"automation_id": automation.id})
        due_at = now() + timedelta(seconds=seconds)

        async def store(tx: Transaction) -> None:
            await PollTable.store(tx, after, due_at)
            if after.trouble and after.trouble != poll.trouble:
                # A failed run reports the problem to the user, since no other run has started.
                run = new_run(automation, key=f"poll:{new_id()}", source=Source.SCHEDULE)
                detail = f"The git host could not be polled: {after.trouble}"
                await RunTable.add(tx, ended(run, RunEnd(status=RunStatus.FAILED, detail=detail)))

        await self._db.write(store)

    async def _fetch_changes(self, automation: Automation, trigger: GitTrigger, poll: Poll) -> Poll:
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
                events += await _pull_events(trigger, work, calls)
        await self._automations.record_events(automation.id, events)
        await self._db.write(lambda tx: WorkTable.schedule_check(tx, automation.id, now()))
        is_same = since == poll.since
        return msgspec.structs.replace(poll, since=since, etag=etag if is_same else "", trouble="")

    def _is_new(self, created: str, poll: Poll) -> bool:
        """Return whether it was opened since the last poll, and its run cannot be deleted yet."""
        since = parse_time(poll.since)
        is_known = self._known_for is None or _is_after(created, now() - self._known_for)
        return is_known and (since is None or _is_after(created, since))


async def _pull_events(trigger: GitTrigger, work: WorkItem, calls: HostCalls) -> list[HostEvent]:
    """Return the events of the pull request of a work item."""
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
