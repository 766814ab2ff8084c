"""Commands in sandboxes that are begun once, however often that is asked, and outlive the server.

A directory of the sandbox that only one can make says that a command was begun. It goes on while the
server is away, and its end is found there.
"""

from shlex import quote
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer

__all__ = ["LOOK", "AgentServer", "Outcome", "stop_once", "watch_once"]

_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 10.0
_SHOWN: Final = 1900
"""Bytes of the output's end."""
# Once its sandbox was stopped and started, another process may have its number.
_RUNS: Final = 'grep -qs agentsvc-run-{id} "/proc/$(cat "$d/pid" 2>/dev/null)/cmdline"'
# By `exec` the number is that of the command's own group: `bash` would wait for it in one more shell.
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
"""Begins a command, or waits a while for its end; says how it stands."""
STOP: Final = f"""
d="$HOME/.agentsvc-run-{{id}}"
{_RUNS} && kill -s TERM -- "-$(cat "$d/pid")"
"""
"""Ends a command with all that it has begun, in whichever shell: `dash` knows no `-TERM --`."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a command has ended."""

    exit_code: int | None
    """None where it was ended with its sandbox."""
    output: str
    """The end of what it wrote."""


async def watch_once(
    agent: AgentServer, run_id: str, command: str, *, directory: str
) -> Outcome | None:
    """Begin a command, unless that was done, and wait some seconds for its end; None if it goes on.

    Raises as `AgentServer.run_command`.
    """
    script = LOOK.format(id=run_id, command=quote(command), place=quote(directory), shown=_SHOWN)
    result = await agent.run_command(script, time_limit=_SECONDS)
    code, _, output = result.stdout.partition("\n")
    if code == "running":
        return None
    # It is the sandbox that has said it.
    is_code = code.isascii() and code.isdecimal() and len(code) <= len("255")
    return Outcome(exit_code=int(code) if is_code else None, output=output)


async def stop_once(agent: AgentServer, run_id: str) -> None:
    """End a command that was begun; raises as `AgentServer.run_command`."""
    await agent.run_command(STOP.format(id=run_id), time_limit=_STOP_SECONDS)
