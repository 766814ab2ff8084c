"""Publishes an agent's commits at the host, and reports progress in a comment on the issue.

Each step is checked at the host before it is repeated: a push of the same commit changes nothing, a
pull request is found by its branch, and the comment by a mark in it. So a crash in between duplicates
nothing.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from shlex import quote
from typing import Final

import msgspec

from agentsvc.base import (
    AgentsvcError,
    AgentUnavailable,
    BadRequest,
    NotFound,
    monotonic,
    now,
    sha256,
)
from agentsvc.extension.conversations import ConversationQuery, ConversationView, WhenFull
from agentsvc.extension.server import SandboxStatus, Server

from .ending import EndRun, RunEnd, ended, stop_run
from .host_calls import MARK
from .issue_hosts import RETRIED_FOR, IssueHosts, retry_seconds
from .model import Automation, GitTrigger, Run, RunStatus, WorkItem
from .table import AutomationTable, RunTable
from .work_table import WorkTable

log = logging.getLogger(__name__)

LARGEST_BUNDLE: Final = 64 * 1024 * 1024

_COMMAND_SECONDS: Final = 120.0
_NO_COMMITS: Final = 4
_MAX_QUOTED: Final = 4000
_RETRY_DELAY: Final = timedelta(seconds=60)
_PAUSE_SECONDS: Final = 30.0
_BEGUN: Final = "An agent has begun to work on this."
_STOPPED: Final = "The agent was stopped."
_PACK: Final = """
cd {directory} || exit 3
export GIT_TERMINAL_PROMPT=0 LC_ALL=C
new=$(git rev-list --count {commit}..HEAD) || exit 3
[ "$new" -gt 0 ] || exit 4
rm -f {file} && git bundle create -q {file} HEAD ^{commit} || exit 3
"""


class Publisher:
    """Publishes the results of runs at their git hosts."""

    def __init__(self, server: Server, hosts: IssueHosts) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._messages = server.messages
        self._sandboxes = server.sandboxes
        self._supervisor = server.supervisor
        self._hosts = hosts
        self._url = (server.config.server.public_url or "").rstrip("/")
        self._retry_at: dict[str, float] = {}

    def announce_start(self, work: WorkItem) -> None:
        """Schedule a comment that work on an issue has begun, unless it is shown already."""
        is_new = work.comment_id is None or self._shows(work, _STOPPED)
        if is_new and self._may_retry(work.id):
            begun = partial(self._say, work, _BEGUN)
            self._supervisor.spawn(f"publication of work {work.id}", begun)

    async def say_stopped(self, run: Run) -> None:
        """Replace the comment that work has begun by one that the run was stopped."""
        conversation_id = run.conversation_id or ""
        work = await WorkTable.of_conversation(self._db, conversation_id)
        if work is None:
            return
        name = f"publication of work {work.id}"
        await self._supervisor.join(name)
        work = await WorkTable.find(self._db, work.id)
        goes_on = await RunTable.of_conversations(self._db, [conversation_id])
        if work is not None and self._shows(work, _BEGUN) and not goes_on:
            self._supervisor.spawn(name, partial(self._say, work, _STOPPED))

    def publish_end(
        self, run: Run, work: WorkItem, view: ConversationView, run_end: RunEnd, end: EndRun
    ) -> None:
        """Schedule the publication of a run's result, then end the run; called until that is done."""
        if self._may_retry(run.id):
            publish = partial(self._publish_and_end, run, work.id, view, run_end, end)
            # The same task name as for comments: two tasks at once would write two comments.
            self._supervisor.spawn(f"publication of work {work.id}", publish)

    async def publish_due(self) -> None:
        """Check the pull requests that are due, and end the work on those merged or closed."""
        due = sorted(await WorkTable.due(self._db, now()), key=attrgetter("user_id"))
        for user_id, works in groupby(due, key=attrgetter("user_id")):
            check = partial(self._check_each, tuple(works))
            self._supervisor.spawn(f"pull requests of user {user_id}", check)

    async def _check_each(self, works: Sequence[WorkItem]) -> None:
        for work in works:
            automation = await AutomationTable.find(self._db, work.automation_id)
            if automation is None:
                continue
            due_at = None
            try:
                if state := await self._pull_state(automation, work):
                    await self._close(automation, work, state)
            except AgentsvcError as exc:
                log.warning("pull request could not be checked", extra=_log_fields(work, exc))
                due_at = now() + max(_RETRY_DELAY, timedelta(seconds=retry_seconds(exc)))
            except Exception:
                log.exception("pull request could not be checked", extra={"work_id": work.id})
                due_at = now() + _RETRY_DELAY
            try:
                await self._schedule_check(work, due_at)
            except AgentsvcError as exc:
                # The time of the next check could not be stored, either.
                log.warning("check of a pull request postponed", extra=_log_fields(work, exc))
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _pull_state(self, automation: Automation, work: WorkItem) -> str:
        if not work.pull:
            return ""
        try:
            async with self._hosts.calls(automation) as calls:
                return await calls.pull_state(work.pull)
        except NotFound:
            return "gone"

    async def _schedule_check(self, work: WorkItem, due_at: datetime | None) -> None:
        await self._db.write(
            lambda tx: WorkTable.schedule_check(tx, work.automation_id, due_at, work_id=work.id)
        )

    def _may_retry(self, key: str) -> bool:
        return monotonic() >= self._retry_at.get(key, 0.0)

    async def _say(self, work: WorkItem, text: str) -> None:
        automation = await AutomationTable.find(self._db, work.automation_id)
        if automation is None:
            return
        try:
            await self._show(automation, work.id, text)
        except AgentsvcError as exc:
            wait = retry_seconds(exc) if exc.may_pass else RETRIED_FOR.total_seconds()
            self._retry_at[work.id] = monotonic() + wait
            log.warning("issue comment not written yet", extra=_log_fields(work, exc))

    async def _publish_and_end(
        self, run: Run, work_id: str, view: ConversationView, run_end: RunEnd, end: EndRun
    ) -> None:
        automation = await AutomationTable.find(self._db, run.automation_id)
        work = await WorkTable.find(self._db, work_id)
        if automation is None or work is None:
            await end(run, run_end)
            return
        try:
            if not work.is_answer and run_end.status is RunStatus.COMPLETED:
                try:
                    await self._publish(automation, run, work, view, run_end)
                except AgentsvcError as exc:
                    if exc.may_pass:
                        raise
                    run_end = _failed(run_end, exc)
            work = await WorkTable.find(self._db, work_id) or work
            await self._show(automation, work_id, _outcome(work, run_end))
        except AgentsvcError as exc:
            if exc.may_pass and now() - view.conversation.updated_at < RETRIED_FOR:
                self._retry_at[run.id] = monotonic() + retry_seconds(exc)
                log.warning("result of a run not published yet", extra=_log_fields(work, exc))
                return
            log.warning("issue comment not written", extra=_log_fields(work, exc))
            if exc.may_pass or work.pull is None:
                run_end = _failed(run_end, exc)
        is_over = (
            automation.definition.keep_alive is False
            or not work.is_followed
            or (run_end.status is RunStatus.FAILED and work.pull is None)
        )
        if is_over:
            await self._db.write(lambda tx: WorkTable.change(tx, work_id, is_open=False))
        self._retry_at.pop(work_id, None)
        self._retry_at.pop(run.id, None)
        await end(run, run_end)

    async def _publish(
        self,
        automation: Automation,
        run: Run,
        work: WorkItem,
        view: ConversationView,
        run_end: RunEnd,
    ) -> None:
        if work.published != run.id:
            head = await self._push(automation, work, view)
            if not head or head == work.head:
                return
            await self._db.write(
                lambda tx: WorkTable.change(tx, work.id, head=head, published=run.id)
            )
        if work.pull is not None:
            return
        async with self._hosts.calls(automation) as calls:
            pull = await calls.find_pull(work.branch) or await calls.open_pull(
                branch=work.branch,
                base=work.base,
                title=work.title,
                text=self._description(automation, work, run_end),
            )
        found = {"pull": pull["number"], "pull_url": pull["url"]}
        await self._db.write(lambda tx: WorkTable.change(tx, work.id, **found))

    async def _push(self, automation: Automation, work: WorkItem, view: ConversationView) -> str:
        """Push the agent's commits and return the last one; empty if there are none."""
        trigger = automation.definition.trigger
        may_change = isinstance(trigger, GitTrigger) and trigger.workflows
        if view.sandbox is not None and view.sandbox_status is SandboxStatus.PAUSED:
            # The git host was unreachable for so long that the sandbox became idle.
            await self._conversations.resume(
                work.user_id, view.sandbox.id, when_full=WhenFull.QUEUE
            )
        if view.sandbox_status in (SandboxStatus.PAUSED, SandboxStatus.STARTING):
            raise AgentUnavailable("The sandbox is being resumed to read the agent's commits")
        agent = self._conversations.require_agent(view)
        directory = view.conversation.working_dir
        file = f"{directory}/.git/agentsvc.bundle"
        script = _PACK.format(
            directory=quote(directory), file=quote(file), commit=quote(work.commit)
        )
        result = await agent.run_command(script, time_limit=_COMMAND_SECONDS)
        if result.exit_code == _NO_COMMITS:
            return ""
        if result.exit_code != 0:
            said = result.stderr.strip()[-300:]
            raise BadRequest(f"The agent's commits cannot be read in its sandbox: {said}")
        bundle = bytearray()

        async def keep(part: bytes) -> None:
            bundle.extend(part)
            if len(bundle) > LARGEST_BUNDLE:
                most = LARGEST_BUNDLE // 1024 // 1024
                raise BadRequest(f"The agent's commits take more than {most} MiB")

        await agent.receive(file, keep, time_limit=_COMMAND_SECONDS)
        async with self._hosts.checkout(automation) as checkout:
            await checkout.fetch(work.commit)
            head = await checkout.take(bytes(bundle), work.commit, workflows=may_change)
            await checkout.push(head, work.branch)
        return head

    def _description(self, automation: Automation, work: WorkItem, run_end: RunEnd) -> str:
        name = automation.definition.name.replace("`", "'")
        about = f"For issue #{work.issue}, by" if work.issue else "By"
        return (
            f"{MARK.format(id=work.id)}\n{quoted(run_end.result)}\n\n{about}"
            f" {self._link(work)}{_cost(run_end)}, as the automation `{name}` says."
        )

    def _link(self, work: WorkItem) -> str:
        name = f"conversation {work.conversation_id[:8]}"
        return f"[{name}]({self._url}/#/c/{work.conversation_id})" if self._url else f"{name}"

    def _comment(self, work: WorkItem, text: str) -> str:
        return f"{MARK.format(id=work.id)}\n{text}\n\nBy {self._link(work)}."

    def _shows(self, work: WorkItem, text: str) -> bool:
        return work.shown == sha256(self._comment(work, text))

    async def _show(self, automation: Automation, work_id: str, text: str) -> None:
        """Write or edit the server's one comment on the issue; raises as the host's `Api`."""
        work = await WorkTable.find(self._db, work_id)
        if work is None or work.comment_id == "":
            return
        whole, mark = self._comment(work, text), MARK.format(id=work.id)
        shown, comment_id = sha256(whole), work.comment_id
        if work.shown == shown:
            return
        async with self._hosts.calls(automation) as calls:
            number, is_pull = work.issue, work.is_pull
            comment_id = comment_id or await calls.find_comment(number, mark, is_pull=is_pull)
            if comment_id is None:
                comment_id = await calls.write_comment(number, whole, is_pull=is_pull)
            else:
                await calls.edit_comment(number, comment_id, whole, is_pull=is_pull)
        known = {"comment_id": comment_id, "shown": shown}
        await self._db.write(lambda tx: WorkTable.change(tx, work.id, **known))

    async def _close(self, automation: Automation, work: WorkItem, state: str) -> None:
        """End the work on an issue, and delete its sandbox unless conversations share it."""
        for run in await RunTable.of_conversations(self._db, [work.conversation_id]):
            await stop_run(self._messages, run)
            end = RunEnd(status=RunStatus.CANCELLED, detail=f"Its pull request is {state}")
            await self._db.write(partial(RunTable.change, run=ended(run, end), since=run.status))
        try:
            await self._show(automation, work.id, f"The pull request is {state}: {work.pull_url}")
        except AgentsvcError as exc:
            log.warning("issue comment not written", extra=_log_fields(work, exc))
        with suppress(NotFound):
            view = await self._conversations.get(work.user_id, work.conversation_id)
            sandbox_id = view.conversation.sandbox_id
            sharing = ConversationQuery(sandbox_id=sandbox_id, include_children=True)
            if sandbox_id and await self._conversations.count(work.user_id, sharing) <= 1:
                await self._sandboxes.delete(work.user_id, sandbox_id)
        await self._db.write(lambda tx: WorkTable.change(tx, work.id, is_open=False))


def quoted(text: str) -> str:
    """Return an agent's text as a Markdown quotation.

    So the text mentions nobody, triggers no command of the host, and cannot pass for the server's own.
    """
    cut = f"{text[:_MAX_QUOTED]}\n[…]" if len(text) > _MAX_QUOTED else text
    harmless = cut.replace("@", "@\u200b").replace("<!--", "<!\u200b--")
    return "\n".join(f"> {line}" for line in harmless.splitlines())


def _outcome(work: WorkItem, run_end: RunEnd) -> str:
    if run_end.status is RunStatus.FAILED:
        return f"The agent did not succeed{_cost(run_end)}:\n\n{quoted(run_end.detail)}"
    done = f"The agent has opened {work.pull_url}" if work.pull else "The agent says"
    return f"{done}{_cost(run_end)}:\n\n{quoted(run_end.result)}"


def _cost(run_end: RunEnd) -> str:
    return f" (${run_end.cost:.2f})" if run_end.cost else ""


def _failed(run_end: RunEnd, exc: AgentsvcError) -> RunEnd:
    detail = f"Its work was not published: {exc.message}"
    return msgspec.structs.replace(run_end, status=RunStatus.FAILED, detail=detail)


def _log_fields(work: WorkItem, exc: AgentsvcError) -> dict[str, str]:
    return {"work_id": work.id, "reason": exc.message}
