"""Starts and continues conversations about issues and pull requests at git hosts.

Except for triggers on everything that is opened, the author of an event needs write access to the
repository. No outside input decides what a conversation may do: sandbox, network, branch and limits
are those of the automation, and no secret of its user is in the sandbox.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from agentsvc.base import NotFound
from agentsvc.extension.agents import PendingKind, PendingMessage
from agentsvc.extension.conversations import StartOrder, StartTask, WhenFull, text_message
from agentsvc.extension.conversations import Trigger as StartTrigger
from agentsvc.extension.git import DefaultBranch
from agentsvc.extension.server import SandboxStatus, Server
from agentsvc.extension.storage import Transaction

from .host_calls import HostCalls, HostRecord
from .host_events import OWN, HostEvent, relevant
from .hosts import Kind
from .issue_hosts import IssueHosts
from .model import Automation, Definition, GitTrigger, Run, WorkItem
from .prompt import fill, marked
from .work_table import WorkTable, find_meant

log = logging.getLogger(__name__)

MAX_REPAIRS: Final = 3
"""How many times an agent is told about failed checks of one pull request."""

_CLOSED: Final = frozenset(
    {"closed", "locked", "merged", "MERGED", "DECLINED", "SUPERSEDED"}
    | {"resolved", "invalid", "duplicate", "wontfix"}
)
"""States of issues and pull requests that need no work, as the hosts name them."""
_TITLE: Final = 200
_LONGEST: Final = 20_000
_RULES: Final = """

You are in a clone of the repository, on a branch of your own that starts at `{base}`. Commit what you
want to keep there; uncommitted changes are lost. You have no access to the host: push nothing and open
no pull request, both are done for you from your commits when you finish. Your last message is shown
there."""
_NO_WORKFLOWS: Final = (
    " Do not change what the host runs automatically, such as `.github/` and `.gitlab-ci.yml`: commits"
    " that change it are rejected."
)
_READ_ONLY_RULES: Final = """

You are in a clone of the repository, and have no access to the host. Nothing that you commit is kept. Your last
message is posted as a comment on the {what}."""
_DIFF_RULES: Final = (
    " What is checked out is the pull request's last commit; `git diff origin/{base}...HEAD` shows what"
    " it changes, or without a merge base `git diff origin/{base} HEAD`."
)
_FEEDBACK: Final = (
    "People who may write to the repository have said this about your work. Do what they ask for, on"
    " the same branch and within the same rules:\n\n"
)
_FAILED_CHECKS: Final = (
    "Checks of your commits have failed. Find out why, fix the cause, and commit the fix on the same"
    " branch. The names of the checks:\n\n"
)

type Claim = Callable[[Transaction, str], Awaitable[None]]
"""Assigns the run to a conversation, in the transaction that starts or continues that."""


class EventIgnored(Exception):
    """The event is ignored, and its run skipped."""


class IssueStarter:
    """Starts or continues the conversations that events of git hosts ask for."""

    def __init__(self, server: Server, hosts: IssueHosts) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._messages = server.messages
        self._hosts = hosts

    async def begin(self, automation: Automation, run: Run, event: HostEvent, claim: Claim) -> str:
        """Start a conversation for a run or continue an earlier one, and return its id.

        Raises EventIgnored for an event to ignore, and as the host's `Api`.
        """
        if event.kind is Kind.OPENED:
            return await self._begin_opened(automation, run, event, claim)
        work = await self._find_active(automation, event)
        async with self._hosts.calls(automation) as calls:
            if work is not None and event.kind is not Kind.LABEL:
                return await self._continue(run, event, work, calls, claim)
            if work is not None:
                raise EventIgnored("The issue is being worked on")
            if event.is_pull or event.kind is Kind.CHECK:
                raise EventIgnored("The pull request is closed, or its conversation gone")
            issue = await calls.issue(event.number)
            actor = event.actor
            if event.kind is Kind.LABEL:
                actor = await calls.who_labelled(event.number, event.id)
            await _check_actor(automation, event, actor, calls)
            comments = await calls.comments(event.number)
        return await self._begin_with_issue(automation, run, issue, comments, claim=claim)

    async def begin_changes(
        self, automation: Automation, run: Run, payload: Any, claim: Claim
    ) -> str:
        """Start a run whose changes become a pull request, like `begin`."""
        definition = automation.definition
        last = await WorkTable.last_pull(self._db, automation.id)
        # A pull request in a repository that the automation had before does not count.
        if last is not None and f"/{automation.repository_name}/".lower() in last.pull_url.lower():
            with contextlib.suppress(NotFound):
                async with self._hosts.calls(automation) as calls:
                    if not await calls.pull_state(last.pull or ""):
                        raise EventIgnored(f"Its last pull request is still open: {last.pull_url}")
        [repository] = definition.repos or []
        async with self._hosts.checkout(automation) as checkout:
            asked = repository.ref
            head = await (checkout.branch(asked) if asked else checkout.head())
        about = {"number": "", "title": definition.name}
        # There is no issue to comment on.
        work = _new_work(automation, run, head, about, comment_id="")
        text = fill(definition.prompt or "", payload, run.due_at) + _rules(automation, head)
        return await self._begin(automation, run, text, work, claim)

    async def _begin_opened(
        self, automation: Automation, run: Run, event: HostEvent, claim: Claim
    ) -> str:
        """Start a conversation that only comments on what was opened."""
        trigger = automation.definition.trigger
        if not isinstance(trigger, GitTrigger) or not relevant(trigger, event):
            raise EventIgnored("The trigger of the automation has changed since")
        try:
            async with self._hosts.calls(automation) as calls:
                opened = await (calls.pull if event.is_pull else calls.issue)(event.number)
                comments = await calls.comments(event.number) if not event.is_pull else []
            if opened["state"] in _CLOSED:
                raise EventIgnored("It has been closed since")
            if not event.is_pull:
                return await self._begin_with_issue(
                    automation, run, opened, comments, claim=claim, is_answer=True
                )
            async with self._hosts.checkout(automation) as checkout:
                base = await checkout.branch(opened["base"])
        except NotFound as exc:
            # This does not count as a failure of the automation.
            raise EventIgnored(exc.message) from exc
        head = DefaultBranch(branch=base.branch, commit=opened["commit"])
        work = _new_work(automation, run, head, opened, is_pull=True, is_answer=True)
        payload = {"pull_request": {**opened, "body": opened["text"]}}
        text = fill(automation.definition.prompt or "", payload, run.due_at)
        text += _READ_ONLY_RULES.format(what="pull request") + _DIFF_RULES.format(base=base.branch)
        return await self._begin(automation, run, text, work, claim, compared_to=base.commit)

    async def _begin_with_issue(
        self,
        automation: Automation,
        run: Run,
        issue: HostRecord,
        comments: list[HostRecord],
        *,
        claim: Claim,
        is_answer: bool = False,
    ) -> str:
        async with self._hosts.checkout(automation) as checkout:
            head = await checkout.head()
        comments = [one for one in comments if not one["text"].startswith(OWN)]
        said = [{"author": one["author"], "text": one["text"]} for one in comments]
        payload = {"issue": {**issue, "body": issue["text"], "comments": said}}
        names = tuple(map(_key, comments))
        work = _new_work(automation, run, head, issue, told=names, is_answer=is_answer)
        text = fill(automation.definition.prompt or "", payload, run.due_at)
        text += _READ_ONLY_RULES.format(what="issue") if is_answer else _rules(automation, head)
        return await self._begin(automation, run, text, work, claim)

    async def _find_active(self, automation: Automation, event: HostEvent) -> WorkItem | None:
        """Return the open work that an event is about, if its conversation still has a sandbox."""
        work = find_meant(await WorkTable.all_open(self._db, automation.id), event)
        if work is None:
            return None
        [view] = await self._conversations.find_many(
            work.user_id, [work.conversation_id], include_starting=True
        )
        if view is not None and view.sandbox_status is not SandboxStatus.MISSING:
            return work
        gone = work.conversation_id
        await self._db.write(lambda tx: WorkTable.close(tx, gone))
        return None

    async def _begin(
        self,
        automation: Automation,
        run: Run,
        text: str,
        begun: WorkItem,
        claim: Claim,
        *,
        compared_to: str | None = None,
    ) -> str:
        definition = automation.definition
        order = order_of(
            definition,
            text,
            branch=begun.base,
            commit=begun.commit,
            compared_to=compared_to,
            withholds_secrets=True,
            needs_lent_model=begun.is_answer,
            provider=definition.host,
            title=f"{definition.name}: {begun.title}"[:_TITLE] if begun.issue else definition.name,
        )

        async def claim_both(tx: Transaction, task: StartTask) -> None:
            await claim(tx, task.conversation_id)
            work = msgspec.structs.replace(begun, conversation_id=task.conversation_id)
            await WorkTable.insert(tx, work)

        task = await self._conversations.starts.start(run.user_id, order, claim=claim_both)
        return task.conversation_id

    async def _continue(
        self, run: Run, event: HostEvent, work: WorkItem, calls: HostCalls, claim: Claim
    ) -> str:
        text, changes = await self._next_message(event, work, calls)

        async def claim_both(tx: Transaction) -> None:
            await claim(tx, work.conversation_id)
            await WorkTable.change(tx, work.id, **changes)

        pending = PendingMessage(
            id=run.id,
            conversation_id=work.conversation_id,
            kind=PendingKind.MESSAGE,
            message=text_message(text),
        )
        await self._messages.say_later(run.user_id, pending, claim=claim_both)
        return work.conversation_id

    async def _next_message(
        self, event: HostEvent, work: WorkItem, calls: HostCalls
    ) -> tuple[str, dict[str, Any]]:
        """Return the message for the agent, and the fields of the work that it changes."""
        if event.kind is Kind.CHECK:
            if work.repairs >= MAX_REPAIRS:
                raise EventIgnored(f"The agent was told {MAX_REPAIRS} times of failed checks")
            names = await calls.failed_checks(event.id)
            if not names:
                raise EventIgnored("No check of the commit fails any more")
            failed = marked("\n".join(names), _LONGEST)
            return _FAILED_CHECKS + failed, {"repairs": work.repairs + 1}
        listed = (
            await calls.pull_comments(event.number)
            if event.is_pull
            else await calls.comments(event.number)
        )
        fresh = [
            one for one in listed if _key(one) not in work.told and not one["text"].startswith(OWN)
        ]
        allowed = {actor: await calls.may_write(actor) for actor in {one["actor"] for one in fresh}}
        said = [one for one in fresh if allowed[one["actor"]]]
        if not said:
            detail = "Nobody who may write to the repository has said anything new"
            log.info("event of a git host ignored", extra={"work_id": work.id, "reason": detail})
            raise EventIgnored(detail)
        parts = [f"{one['author']}{_at(one)}:\n{marked(one['text'], _LONGEST)}" for one in said]
        return _FEEDBACK + "\n\n".join(parts), {"told": (*work.told, *map(_key, said))}


def order_of(definition: Definition, text: str | None, **more: Any) -> StartOrder:
    """Return the start order of a run with the agent's first message; `more` overrides fields."""
    repository = definition.repository
    order = StartOrder(
        initial_message=None if text is None else text_message(text),
        llm_profile=definition.model,
        repository=(repository.url or None) if repository else None,
        branch=(repository.ref or None) if repository else None,
        provider=repository.provider if repository else None,
        title=definition.name,
        trigger=StartTrigger.AUTOMATION,
        when_full=WhenFull.QUEUE,
        max_budget=definition.max_budget,
        max_iterations=definition.max_iterations,
    )
    return msgspec.structs.replace(order, **more)


async def _check_actor(
    automation: Automation, event: HostEvent, actor: str, calls: HostCalls
) -> None:
    if not await calls.may_write(actor):
        detail = f"`{ascii(actor)[1:-1]}` may not write to the repository"
        extra = {"automation_id": automation.id, "key": event.key, "reason": detail}
        log.info("event of a git host ignored", extra=extra)
        raise EventIgnored(detail)


def _rules(automation: Automation, head: DefaultBranch) -> str:
    trigger = automation.definition.trigger
    may_change = isinstance(trigger, GitTrigger) and trigger.workflows
    return _RULES.format(base=head.branch) + ("" if may_change else _NO_WORKFLOWS)


def _new_work(
    automation: Automation, run: Run, head: DefaultBranch, about: HostRecord, **more: Any
) -> WorkItem:
    number = about["number"]
    return WorkItem(
        id=run.id,
        automation_id=automation.id,
        user_id=run.user_id,
        conversation_id="",
        issue=number,
        title=" ".join(about["title"].split())[:_TITLE] or f"Issue {number}",
        base=head.branch,
        commit=head.commit,
        **more,
    )


def _key(comment: HostRecord) -> str:
    return f"{comment['id']} {comment['at']}"


def _at(comment: HostRecord) -> str:
    path = comment.get("path", "")
    return f" at {marked(path, _TITLE)}" if path else ""
