"""Runs whose task is a command in a sandbox, and no agent.

The command is begun once for each run, however often that is asked: a directory of the sandbox that only one
can make says so. It goes on while the server is away, and its end is found there.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from shlex import quote
from typing import Final

from agentsvc.base import AgentsvcError
from agentsvc.extension.conversations import ConversationView
from agentsvc.extension.server import Server

from .ending import AT_WORK, Verdict
from .model import Run, RunStatus
from .table import AutomationTable, RunTable

log = logging.getLogger(__name__)

_SECONDS: Final = 60.0
_SHOWN: Final = 1900
"""Bytes of the output's end."""
LOOK: Final = """
d="$HOME/.agentsvc-run-{id}"
if mkdir "$d" 2>/dev/null; then
  printf %s {command} >"$d/command"
  cd {place} && setsid sh -c 'sh "$1/command" >"$1/output" 2>&1; echo $? >"$1/new"; mv "$1/new" "$1/code"' \\
    sh "$d" </dev/null >/dev/null 2>&1 &
  echo $! >"$d/pid"
fi
n=0
while [ ! -f "$d/code" ] && [ $n -lt 60 ]; do
  sleep 0.3
  n=$((n + 1))
  kill -0 "$(cat "$d/pid")" 2>/dev/null || break
done
if [ -f "$d/code" ]; then
  cat "$d/code"
elif kill -0 "$(cat "$d/pid")" 2>/dev/null; then
  echo running
else
  echo lost
fi
tail -c {shown} "$d/output"
"""
"""Begins a command, or waits a while for its end; says how it stands."""

type End = Callable[[Run, Verdict, ConversationView], Awaitable[None]]


class Commands:
    """Begins commands, and ends their runs; what cannot be reached is asked again with the next look."""

    def __init__(self, server: Server) -> None:
        self._db = server.database
        self._conversations = server.conversations
        self._sandboxes = server.sandboxes
        self._supervisor = server.supervisor
        self._watched: set[str] = set()

    async def watch(self, run: Run, view: ConversationView, end: End) -> None:
        """See to the command of a run whose sandbox is ready, if that is its task."""
        is_for_agent = not view.conversation.is_ready or view.execution_status in AT_WORK
        if is_for_agent or run.id in self._watched:
            return
        automation = await AutomationTable.find(self._db, run.automation_id)
        if automation is not None and (command := automation.definition.command):
            self._watched.add(run.id)
            watch = partial(self._watch, run, view, command, end)
            self._supervisor.spawn(f"command of run {run.id}", watch)

    async def _watch(self, run: Run, view: ConversationView, command: str, end: End) -> None:
        place = quote(view.conversation.working_dir)
        script = LOOK.format(id=run.id, command=quote(command), place=place, shown=_SHOWN)
        try:
            with self._sandboxes.usage.hold(view.conversation.sandbox_id or ""):
                verdict = None
                while verdict is None and await self._goes_on(run):
                    agent = self._conversations.require_agent(view)
                    told = await agent.run_command(script, time_limit=_SECONDS)
                    verdict = _verdict(told.stdout)
            if verdict is not None:
                await end(run, verdict, view)
        except AgentsvcError as exc:
            extra = {"run_id": run.id, "reason": exc.message}
            log.warning("command of an automation not seen", extra=extra)
        finally:
            self._watched.discard(run.id)

    async def _goes_on(self, run: Run) -> bool:
        found = await RunTable.find(self._db, run.id)
        return found is not None and found.status is RunStatus.RUNNING


def _verdict(told: str) -> Verdict | None:
    code, _, output = told.partition("\n")
    if code == "running":
        return None
    said = f"exit code {code}\n{output}" if code.isdecimal() else output
    if code == "0":
        return Verdict(status=RunStatus.COMPLETED, result=said)
    text = f"The command has ended with {said}" if code.isdecimal() else "The command was ended"
    return Verdict(status=RunStatus.FAILED, detail=text, result=said)
