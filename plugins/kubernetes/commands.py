"""Commands in a running sandbox, killed at a time limit with all processes they started."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import AgentsvcError, BackendUnavailable, Conflict, OrderRejected, new_id
from agentsvc.plugin import ExecResult

from . import names
from .api import Api
from .objects import CONTAINER

_MARK: Final = "AGENTSVC_EXEC"
_KIBIBYTE: Final = 1024
_STDOUT: Final = 1
_STDERR: Final = 2
_STATUS: Final = 3
_END_SECONDS: Final = 50

# The first arguments are the limit, the number of variables and those; the command follows.
_ENTRY: Final = (
    'ulimit -m "$0" 2>/dev/null; n=$1; shift;'
    ' while [ "$n" -gt 0 ]; do export "$1"; shift; n=$((n-1)); done; exec "$@"'
)

# Everything a command started has its mark, however it was detached: a variable, and a limit that
# no kernel enforces, each process inherits and none may raise, so that a cleared environment hides
# nobody. Where the first process has that limit, too, as in gVisor, it says nothing. Until two
# rounds find nothing: what is just being forked may not show in the first. The dead whom nobody
# has reaped are left out.
_KILL: Final = """
mark=$0 limit=" $1 "
case "$(cat /proc/1/limits 2>/dev/null)" in *"$limit"*|"") limit=$mark ;; esac
clean=0
while [ $clean -lt 2 ]; do
  found=
  for d in /proc/[0-9]*; do
    case "$(cat $d/status 2>/dev/null)" in *"
State:	Z"*) continue ;; esac
    case "$(cat $d/limits $d/environ 2>/dev/null)" in
      *"$mark"*|*"$limit"*) p=${d#/proc/}; [ $p = $$ ] || { kill -9 $p 2>/dev/null && found=1; } ;;
    esac
  done
  if [ "$found" ]; then clean=0; else clean=$((clean+1)); fi
done
"""


class Output(msgspec.Struct):
    """The output of a command, with each stream truncated at `limit` bytes, and its exit code."""

    limit: int
    stdout: bytearray = msgspec.field(default_factory=bytearray)
    stderr: bytearray = msgspec.field(default_factory=bytearray)
    is_cut: bool = False
    exit_code: int | None = None

    def add(self, channel: int, data: bytes) -> None:
        """Append the data to its stream, as far as the limit allows."""
        into = self.stderr if channel == _STDERR else self.stdout
        room = self.limit - len(into)
        self.is_cut = self.is_cut or len(data) > room
        into += data[: max(room, 0)]

    def result(self, *, timed_out: bool = False) -> ExecResult:
        """Return the result of the command; after a timeout it has no exit code."""
        return ExecResult(
            exit_code=None if timed_out else self.exit_code,
            stdout=bytes(self.stdout),
            stderr=bytes(self.stderr),
            timed_out=timed_out,
            truncated=self.is_cut,
        )


async def execute(
    api: Api,
    namespace: str,
    sandbox_id: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    time_limit: float,
    max_output: int,
    container: str = CONTAINER,
) -> ExecResult:
    """Run one command in a container of a sandbox's pod; see `RuntimeBackend.execute`."""
    mark = new_id()
    variables = [f"{name}={value}" for name, value in {**env, _MARK: mark}.items()]
    command = [*_shell(_ENTRY), str(_limit_of(mark)), str(len(variables)), *variables, *argv]
    path = names.path("pods", namespace, names.main(sandbox_id), below="exec")
    output = Output(limit=max_output)
    try:
        async with asyncio.timeout(time_limit):
            await _attend(api, path, container, command, output)
    except TimeoutError:
        await asyncio.shield(_end(api, path, container, mark))
        return output.result(timed_out=True)
    except asyncio.CancelledError:
        await asyncio.shield(_end(api, path, container, mark))
        raise
    except OrderRejected as exc:
        raise Conflict("The sandbox runs no commands now", detail=exc.detail) from exc
    return output.result()


async def _attend(
    api: Api, path: str, container: str, command: Sequence[str], output: Output
) -> None:
    query = [("container", container), ("stdout", "true"), ("stderr", "true")]
    query += [("command", part) for part in command]
    async with api.socket(path, query) as socket:
        async for message in socket:
            if not isinstance(message.data, bytes) or not message.data:
                break
            channel, data = message.data[0], message.data[1:]
            if channel in (_STDOUT, _STDERR):
                output.add(channel, data)
            elif channel == _STATUS:
                output.exit_code = exit_code_of(data)
                return
    raise BackendUnavailable("The connection to the command was lost before it ended")


def exit_code_of(said: bytes) -> int:
    """Return the exit code in the API server's final status; raises Conflict if it has none."""
    try:
        status: dict[str, Any] = msgspec.json.decode(said, type=dict[str, Any])
        if status.get("status") == "Success":
            return 0
        causes = (status.get("details") or {}).get("causes") or ()
        return next(int(one["message"]) for one in causes if one.get("reason") == "ExitCode")
    except (msgspec.MsgspecError, StopIteration, ValueError, LookupError, AttributeError) as exc:
        raise Conflict(
            "The sandbox runs no commands now", detail=said[:300].decode(errors="replace")
        ) from exc


async def _end(api: Api, path: str, container: str, mark: str) -> None:
    """Kill the processes with the mark; ignore errors, because the sandbox may be gone."""
    command = [*_shell(_KILL), f"{_MARK}={mark}", str(_limit_of(mark) * _KIBIBYTE)]
    try:
        async with asyncio.timeout(_END_SECONDS):
            await _attend(api, path, container, command, Output(limit=0))
    except (AgentsvcError, TimeoutError):
        return


def _shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def _limit_of(mark: str) -> int:
    """Return a memory limit in KiB for a mark: beyond any machine's memory, and not round."""
    return 2**40 + int(mark[:10], 16)
