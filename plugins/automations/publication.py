"""Brings what an agent has committed to the host, and says below the issue how it goes.

Each step is looked up at the host before it is done again: a push of the same commit changes nothing, a
pull request is found by its branch, and the comment by a mark in it. So a kill in between does nothing
twice.
"""

import logging
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
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

from .ending import EndRun, RunEnd, ended, halt
from .host_calls import MARK
from .issue_hosts import PASSING, RETRIED_FOR, IssueHosts, wait_of
from .model import Automation, GitTrigger, Run, RunStatus, WorkItem
from .table import AutomationTable, RunTable
from .work_table import WorkTable

log = logging.getLogger(__name__)

LARGEST_BUNDLE: Final = 64 * 1024 * 1024

_SECONDS: Final = 120.0
_NOTHING: Final = 4
_MAX_SAID: Final = 4000
_AGAIN: Final = timedelta(seconds=60)
_PACK: Final = """
cd {directory} || exit 3
export GIT_TERMINAL_PROMPT=0 LC_ALL=C
new=$(git rev-list --count {commit}..HEAD) || exit 3
[ "$new" -gt 0 ] || exit 4
rm -f {file} && git bundle create -q {file} HEAD ^{commit} || exit 3
"""


class Publisher:
    """Publishes what runs have made of issues."""

    def __init__(self, server: Server, hosts: IssueHosts) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._sandboxes = server.sandboxes
        self._supervisor = server.supervisor
        self._hosts = hosts
        self._url = (server.config.server.public_url or "").rstrip("/")
        self._later: dict[str, float] = {}

    def begun(self, work: WorkItem) -> None:
        """Say soon, unless that is said, that work on an issue has begun."""
        if work.comment_id is None and self._is_time(work.id):
            self._supervisor.spawn(f"publication of work {work.id}", partial(self._say_begun, work))

    def ended(
        self, run: Run, work: WorkItem, view: ConversationView, verdict: RunEnd, end: EndRun
    ) -> None:
        """Publish soon what a run has made, then end it; called again until that is done."""
        if self._is_time(run.id):
            publish = partial(self._finish, run, work.id, view, verdict, end)
            # By the name of the comment's task: both at once would write two.
            self._supervisor.spawn(f"publication of work {work.id}", publish)

    async def publish_due(self) -> None:
        """End what is done about issues whose pull requests were merged or closed."""
        for work in await WorkTable.due(self._db, now()):
            automation = await AutomationTable.find(self._db, work.automation_id)
            if automation is None:
                continue
            due_at = None
            try:
                async with self._hosts.calls(automation) as calls:
                    state = await calls.pull_state(work.pull or "") if work.pull else ""
                if state:
                    await self._close(automation, work, state)
            except NotFound:
                await self._close(automation, work, "gone")
            except AgentsvcError as exc:
                log.warning("pull request not seen", extra=_about(work, exc))
                due_at = now() + max(_AGAIN, timedelta(seconds=wait_of(exc)))
            await self._check_again(work, due_at)

    async def _check_again(self, work: WorkItem, due_at: datetime | None) -> None:
        await self._db.write(
            lambda tx: WorkTable.look_at(tx, work.automation_id, due_at, work_id=work.id)
        )

    def _is_time(self, key: str) -> bool:
        return monotonic() >= self._later.get(key, 0.0)

    async def _say_begun(self, work: WorkItem) -> None:
        automation = await AutomationTable.find(self._db, work.automation_id)
        if automation is None:
            return
        try:
            await self._show(automation, work.id, "An agent has begun to work on this.")
        except AgentsvcError as exc:
            wait = wait_of(exc) if isinstance(exc, PASSING) else RETRIED_FOR.total_seconds()
            self._later[work.id] = monotonic() + wait
            log.warning("comment of an issue not written yet", extra=_about(work, exc))

    async def _finish(
        self, run: Run, work_id: str, view: ConversationView, verdict: RunEnd, end: EndRun
    ) -> None:
        automation = await AutomationTable.find(self._db, run.automation_id)
        work = await WorkTable.find(self._db, work_id)
        if automation is None or work is None:
            await end(run, verdict, view)
            return
        try:
            if not work.is_answer and verdict.status is RunStatus.COMPLETED:
                try:
                    await self._publish(automation, run, work, view, verdict)
                except PASSING:
                    raise
                except AgentsvcError as exc:
                    verdict = _failed(verdict, exc)
            work = await WorkTable.find(self._db, work_id) or work
            await self._show(automation, work_id, _outcome(work, verdict))
        except PASSING as exc:
            if now() - view.conversation.updated_at < RETRIED_FOR:
                self._later[run.id] = monotonic() + wait_of(exc)
                log.warning("work on an issue not published yet", extra=_about(work, exc))
                return
            verdict = _failed(verdict, exc)
        except AgentsvcError as exc:
            log.warning("comment of an issue not written", extra=_about(work, exc))
            if work.pull is None:
                verdict = _failed(verdict, exc)
        is_over = (
            automation.definition.keep_alive is False
            or not work.is_followed
            or (verdict.status is RunStatus.FAILED and work.pull is None)
        )
        if is_over:
            await self._db.write(lambda tx: WorkTable.change(tx, work_id, is_open=False))
        self._later.pop(work_id, None)
        self._later.pop(run.id, None)
        await end(run, verdict, view)

    async def _publish(
        self,
        automation: Automation,
        run: Run,
        work: WorkItem,
        view: ConversationView,
        verdict: RunEnd,
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
                text=self._description(automation, work, verdict),
            )
        found = {"pull": pull["number"], "pull_url": pull["url"]}
        await self._db.write(lambda tx: WorkTable.change(tx, work.id, **found))

    async def _push(self, automation: Automation, work: WorkItem, view: ConversationView) -> str:
        """Push what the agent has committed and return its last commit; empty for nothing."""
        trigger = automation.definition.trigger
        may_change = isinstance(trigger, GitTrigger) and trigger.workflows
        if view.sandbox is not None and view.sandbox_status is SandboxStatus.PAUSED:
            # Its host was away for so long that it counted as idle.
            await self._sandboxes.resume(work.user_id, view.sandbox.id, when_full=WhenFull.QUEUE)
            raise AgentUnavailable("The sandbox is resumed for what is in it")
        agent = self._conversations.require_agent(view)
        directory = view.conversation.working_dir
        file = f"{directory}/.git/agentsvc.bundle"
        script = _PACK.format(
            directory=quote(directory), file=quote(file), commit=quote(work.commit)
        )
        result = await agent.run_command(script, time_limit=_SECONDS)
        if result.exit_code == _NOTHING:
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

        await agent.receive(file, keep, time_limit=_SECONDS)
        async with self._hosts.checkout(automation) as checkout:
            await checkout.fetch(work.commit)
            head = await checkout.take(bytes(bundle), work.commit, workflows=may_change)
            await checkout.push(head, work.branch)
        return head

    def _description(self, automation: Automation, work: WorkItem, verdict: RunEnd) -> str:
        name = automation.definition.name.replace("`", "'")
        about = f"For issue #{work.issue}, by" if work.issue else "By"
        return (
            f"{MARK.format(id=work.id)}\n{quoted(verdict.result)}\n\n{about}"
            f" {self._link(work)}{_cost(verdict)}, as the automation `{name}` says."
        )

    def _link(self, work: WorkItem) -> str:
        name = f"conversation {work.conversation_id[:8]}"
        return f"[{name}]({self._url}/#/c/{work.conversation_id})" if self._url else f"{name}"

    async def _show(self, automation: Automation, work_id: str, text: str) -> None:
        """Have the one comment below the issue say something; raises as the host's `Api`."""
        work = await WorkTable.find(self._db, work_id)
        if work is None or work.comment_id == "":
            return
        mark = MARK.format(id=work.id)
        whole = f"{mark}\n{text}\n\nBy {self._link(work)}."
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
        """End what is done about an issue, and free its sandbox."""
        for run in await RunTable.of_conversations(self._db, [work.conversation_id]):
            await halt(self._conversations, run)
            end = RunEnd(status=RunStatus.CANCELLED, detail=f"Its pull request is {state}")
            await self._db.write(partial(RunTable.change, run=ended(run, end), since=run.status))
        try:
            await self._show(automation, work.id, f"The pull request is {state}: {work.pull_url}")
        except AgentsvcError as exc:
            log.warning("comment of an issue not written", extra=_about(work, exc))
        with suppress(NotFound):
            view = await self._conversations.get(work.user_id, work.conversation_id)
            sandbox_id = view.conversation.sandbox_id
            mates = ConversationQuery(sandbox_id=sandbox_id, include_children=True)
            if sandbox_id and await self._conversations.count(work.user_id, mates) <= 1:
                await self._sandboxes.delete(work.user_id, sandbox_id)
        await self._db.write(lambda tx: WorkTable.change(tx, work.id, is_open=False))


def quoted(text: str) -> str:
    """Return what an agent has said as a quotation in Markdown.

    So nothing of it calls anybody, is a command to the host, or passes for the server's own.
    """
    cut = f"{text[:_MAX_SAID]}\n[…]" if len(text) > _MAX_SAID else text
    harmless = cut.replace("@", "@\u200b").replace("<!--", "<!\u200b--")
    return "\n".join(f"> {line}" for line in harmless.splitlines())


def _outcome(work: WorkItem, verdict: RunEnd) -> str:
    if verdict.status is RunStatus.FAILED:
        return f"The agent did not succeed{_cost(verdict)}:\n\n{quoted(verdict.detail)}"
    if verdict.status is RunStatus.CANCELLED:
        return "The agent was stopped."
    done = f"The agent has opened {work.pull_url}" if work.pull else "The agent says"
    return f"{done}{_cost(verdict)}:\n\n{quoted(verdict.result)}"


def _cost(verdict: RunEnd) -> str:
    return f" (${verdict.cost:.2f})" if verdict.cost else ""


def _failed(verdict: RunEnd, exc: AgentsvcError) -> RunEnd:
    detail = f"Its work was not published: {exc.message}"
    return msgspec.structs.replace(verdict, status=RunStatus.FAILED, detail=detail)


def _about(work: WorkItem, exc: AgentsvcError) -> dict[str, str]:
    return {"work_id": work.id, "reason": exc.message}
