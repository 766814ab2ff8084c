"""The pipeline that starts one conversation, step by step, also after a restart of the server.

Every step is idempotent: it finds what an earlier run of it has already done. After a restart the
pipeline runs again from the first step; only the task's row says which stage it had reached.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Final

from agentsvc.base import AgentsvcError, ConversationDeleted, reason_of, steady_now
from agentsvc.conversations.starting.checks import check_request
from agentsvc.conversations.starting.failure import START_AGAIN, explain_error
from agentsvc.conversations.starting.files import FileSteps
from agentsvc.conversations.starting.opener import ConversationOpener
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress
from agentsvc.conversations.starting.sandbox_checks import SandboxChecks
from agentsvc.conversations.starting.sandbox_wait import SandboxWait
from agentsvc.conversations.starting.states import Start
from agentsvc.domain import StartStatus

log = logging.getLogger(__name__)

_FIRST_RETRY_SECONDS: Final = 0.5
_LAST_RETRY_SECONDS: Final = 10.0


class StartPipeline:
    """Runs a start task to READY or ERROR."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._sandboxes = parts.sandboxes
        self._wait = SandboxWait(parts)
        self._files = FileSteps(parts)
        self._opener = ConversationOpener(parts)
        self._checks = SandboxChecks(parts)
        self._progress = Progress(parts)
        self._time_limit = timedelta(seconds=parts.config.start_seconds)

    async def run(self, task_id: str) -> None:
        """Run a start task and store its result; no-op if it has ended or was deleted."""
        stores = self._parts.stores
        task = await stores.tasks.find(task_id)
        conversation = await stores.conversations.find(task.conversation_id) if task else None
        if task is None or conversation is None or task.status.is_final:
            return
        start = Start(
            task=task, conversation=conversation, deadline=steady_now() + self._time_limit
        )
        try:
            await self._run_steps(start)
        except ConversationDeleted:
            await self._progress.forget(start)
        except AgentsvcError as exc:
            tail = await self._checks.log_tail(start.sandbox)
            await self._progress.fail(start, explain_error(exc, tail), exc.detail or exc.code)
        except Exception:
            log.exception("conversation start failed", extra={"task_id": task_id})
            text = reason_of("An unexpected error; the server's log has the details", START_AGAIN)
            await self._progress.fail(start, text, "")
        finally:
            self._sandboxes.slots.remove(task_id)
        is_ready = start.task.status is StartStatus.READY
        await self._sandboxes.yield_to_starts(start.sandbox if is_ready else None)

    async def _run_steps(self, start: Start) -> None:
        """Run all steps in order, each under the stage that users see."""
        stage, files = StartStatus, self._files
        check, get_sandbox = partial(check_request, self._parts), self._wait.get_sandbox
        checked = await self._step(start, stage.WORKING, check, start)
        hosted = await self._step(start, stage.WAITING_FOR_SANDBOX, get_sandbox, checked)
        if _waits_for_files(start):
            # Other starts may use this machine meanwhile.
            self._sandboxes.slots.give_back(start.task.id)
            await self._sandboxes.yield_to_starts()
        prepared = await self._step(start, stage.PREPARING_REPOSITORY, files.prepare, hosted)
        await self._step(start, stage.RUNNING_SETUP_SCRIPT, files.run_setup_script, prepared)
        await self._step(start, stage.SETTING_UP_GIT_HOOKS, files.install_hooks, prepared)
        ready = await self._step(start, stage.SETTING_UP_SKILLS, files.load_hooks, prepared)
        await self._step(start, stage.STARTING_CONVERSATION, self._opener.open, ready)

    async def _step[State, Next](
        self,
        start: Start,
        stage: StartStatus,
        step: Callable[[State], Awaitable[Next]],
        state: State,
    ) -> Next:
        """Run one step; retry it with back-off after temporary errors, until the deadline."""
        await self._progress.enter(start, stage)
        pause, reason = _FIRST_RETRY_SECONDS, ""
        while True:
            try:
                return await step(state)
            except AgentsvcError as exc:
                if not exc.may_pass or steady_now() > start.deadline:
                    raise
                if exc.message != reason:
                    reason = exc.message
                    log.info(
                        "conversation start step retried",
                        extra={"task_id": start.task.id, "reason": f"{reason} {exc.detail}"},
                    )
                await self._checks.check(start)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LAST_RETRY_SECONDS)


def _waits_for_files(start: Start) -> bool:
    """Return whether a start now waits for a git host, an archive or a set-up script."""
    order = start.task.request
    is_cloned = start.conversation.selected_repository and not order.parent_conversation_id
    return order.archive_id is not None or bool(is_cloned)
