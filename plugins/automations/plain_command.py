"""Runs whose task is a shell command in a sandbox instead of an agent."""

import logging
from functools import partial

from agentsvc.base import AgentsvcError
from agentsvc.extension.commands import Outcome, watch_once
from agentsvc.extension.conversations import ConversationView
from agentsvc.extension.endings import AT_WORK
from agentsvc.extension.server import Server

from .ending import EndRun, RunEnd
from .model import Run, RunStatus
from .table import AutomationTable, RunTable

log = logging.getLogger(__name__)


class Commands:
    """Starts commands and ends their runs; an unreachable sandbox is retried at the next check."""

    def __init__(self, server: Server) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._sandboxes = server.sandboxes
        self._supervisor = server.supervisor

    async def watch(self, run: Run, view: ConversationView, end: EndRun) -> None:
        """Start and watch the command of a run, if it has one and its sandbox is ready."""
        name = f"command of run {run.id}"
        is_for_agent = not view.conversation.is_ready or view.execution_status in AT_WORK
        if is_for_agent or self._supervisor.is_running(name):
            return
        automation = await AutomationTable.find(self._db, run.automation_id)
        if automation is not None and (command := automation.definition.command):
            self._supervisor.spawn(name, partial(self._watch, run, view, command, end))

    async def _watch(self, run: Run, view: ConversationView, command: str, end: EndRun) -> None:
        place = view.conversation.working_dir
        try:
            with self._sandboxes.usage.hold(view.conversation.sandbox_id or ""):
                run_end = None
                while run_end is None and await self._is_running(run):
                    agent = self._conversations.require_agent(view)
                    outcome = await watch_once(agent, run.id, command, directory=place)
                    run_end = _run_end(outcome) if outcome else None
            if run_end is not None:
                await end(run, run_end)
        except AgentsvcError as exc:
            extra = {"run_id": run.id, "reason": exc.message}
            log.warning("automation command could not be checked", extra=extra)

    async def _is_running(self, run: Run) -> bool:
        found = await RunTable.find(self._db, run.id)
        return found is not None and found.status is RunStatus.RUNNING


def _run_end(outcome: Outcome) -> RunEnd:
    code, output = outcome.exit_code, outcome.output
    said = output if code is None else f"exit code {code}\n{output}"
    if code == 0:
        return RunEnd(status=RunStatus.COMPLETED, result=said)
    text = "The command was terminated" if code is None else f"The command ended with {said}"
    return RunEnd(status=RunStatus.FAILED, detail=text, result=said)
