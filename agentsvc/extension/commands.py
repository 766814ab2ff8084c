"""Commands in sandboxes that are started once, however often that is requested, and outlive the server.

A directory in the sandbox, created atomically, marks a command as started. The command continues while
the server is down, and leaves its exit code and output there.
"""

from shlex import quote
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer

__all__ = ["LOOK", "AgentServer", "Outcome", "stop_once", "watch_once"]

_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_SHOWN: Final = 1900
"""The number of bytes from the end of the output."""
# After a restart of the sandbox another process may have its pid.
_RUNS: Final = 'grep -qs agentsvc-run-{id} "/proc/$(cat "$d/pid" 2>/dev/null)/cmdline"'
# With `exec` the pid is that of the command's process group: otherwise `bash` adds a waiting shell.
LOOK: Final = f"""
d="$HOME/.agentsvc-run-{{id}}"
if mkdir "$d" 2>/dev/null && printf %s {{command}} >"$d/new" && mv "$d/new" "$d/command"; then
  cd {{place}} && exec setsid sh -c 'sh "$1/command" >"$1/output" 2>&1; echo $? >"$1/new"; mv "$1/new" "$1/code"' \\
    sh "$d" </dev/null >/dev/null 2>&1 &
  echo $! >"$d/pid"
fi
n=0
while [ ! -f "$d/code" ] && [ $n -lt 60 ]; do
  sleep 0.3
  n=$((n + 1))
  {_RUNS} || break
done
if [ -f "$d/code" ]; then
  cat "$d/code"
elif {_RUNS}; then
  echo running
else
  echo lost
fi
tail -c {{shown}} "$d/output"
"""
"""Starts a command, or waits a while for its end; prints its state."""
STOP: Final = f"""
d="$HOME/.agentsvc-run-{{id}}"
{_RUNS} && kill -s TERM -- "-$(cat "$d/pid")"
"""
"""Terminates a command with its process group, in any shell: `dash` does not support `-TERM --`."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command."""

    exit_code: int | None
    """None if it was killed with its sandbox."""
    output: str
    """The end of its output."""


async def watch_once(
    agent: AgentServer, run_id: str, command: str, *, directory: str
) -> Outcome | None:
    """Start a command unless it was started, and wait some seconds for its end; None if it is running.

    Raises the errors of `AgentServer.run_command`.
    """
    script = LOOK.format(id=run_id, command=quote(command), place=quote(directory), shown=_SHOWN)
    result = await agent.run_command(script, time_limit=_SECONDS)
    code, _, output = result.stdout.partition("\n")
    if code == "running":
        return None
    # The output comes from the sandbox, so it is not trusted.
    is_code = code.isascii() and code.isdecimal() and len(code) <= len("255")
    return Outcome(exit_code=int(code) if is_code else None, output=output)


async def stop_once(agent: AgentServer, run_id: str) -> None:
    """Terminate a running command; raises the errors of `AgentServer.run_command`."""
    await agent.run_command(STOP.format(id=run_id), time_limit=_STOP_SECONDS)
