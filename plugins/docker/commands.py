"""Commands inside a running sandbox; at the time limit, all their processes are killed."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from agentsvc.base import AgentsvcError, BackendUnavailable, Conflict, OrderRejected, new_id
from agentsvc.plugin import ExecResult

from .engine import Engine
from .plan import INSIDE
from .streams import Output, frames

_MARK: Final = "AGENTSVC_EXEC"
_LIMIT: Final = 'ulimit -m "$0" 2>/dev/null; '
_KIBIBYTE: Final = 1024
_ROUNDS: Final = 50
_NOT_FOUND: Final = 127
_POLL_SECONDS: Final = 0.05

# All descendants of a command carry its mark, however they are detached: a variable, and a resource
# limit that no kernel enforces, each process inherits and none may raise, so that a cleared
# environment hides no process. If the first process has that limit, too, as in gVisor, all share
# it, and it is not used. The loop ends when two rounds find nothing, because a process that is
# being forked may be missing in the first. Zombies are ignored.
_KILL: Final = """
limit=" $1 "
case "$(cat /proc/1/limits 2>/dev/null)" in
  *"$limit"*|"") limit=$0 ;;
esac
clean=0
while [ $clean -lt 2 ]; do
  found=
  for d in /proc/[0-9]*; do
    case "$(cat $d/status 2>/dev/null)" in
      *"
State:	Z"*) continue ;;
    esac
    case "$(cat $d/limits $d/environ 2>/dev/null)" in
      *"$0"*|*"$limit"*) p=${d#/proc/}; [ $p = $$ ] || { kill -9 $p 2>/dev/null && found=1; } ;;
    esac
  done
  if [ "$found" ]; then clean=0; else clean=$((clean+1)); fi
done
"""


async def execute(
    engine: Engine,
    container_id: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    time_limit: float,
    max_output: int,
    user: str = "",
) -> ExecResult:
    """Run one command, by default as the sandbox's user; see `RuntimeBackend.execute`."""
    mark = new_id()
    output, exit_code = Output(limit=max_output), None
    command = ["/bin/sh", "-c", _LIMIT + INSIDE, str(_limit_of(mark)), *argv]
    exec_id = await _create_exec(engine, container_id, command, env, mark=mark, user=user)
    try:
        async with asyncio.timeout(time_limit):
            await _read_output(engine, exec_id, output)
            exit_code = await _exit_code(engine, exec_id)
    except (TimeoutError, asyncio.CancelledError, BackendUnavailable) as exc:
        await asyncio.shield(_kill_marked(engine, container_id, mark))
        if not isinstance(exc, TimeoutError):
            raise
    except OrderRejected as exc:
        return ExecResult(exit_code=_NOT_FOUND, stderr=exc.detail.encode())
    return ExecResult(
        exit_code=exit_code,
        stdout=bytes(output.stdout),
        stderr=bytes(output.stderr),
        timed_out=exit_code is None,
        truncated=output.is_cut,
    )


async def _create_exec(
    engine: Engine,
    container_id: str,
    argv: list[str],
    env: Mapping[str, str],
    *,
    mark: str,
    user: str = "",
) -> str:
    made = await engine.ask(
        "POST",
        f"containers/{container_id}/exec",
        body={
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": False,
            "Cmd": argv,
            "Env": [f"{name}={value}" for name, value in env.items()] + [f"{_MARK}={mark}"],
            "User": user,
        },
        expect=(404, 409),
    )
    if made is None:
        raise Conflict("The sandbox does not run and accepts no commands")
    return str(made["Id"])


async def _read_output(engine: Engine, exec_id: str, output: Output) -> None:
    async with engine.stream(
        "POST", f"exec/{exec_id}/start", body={"Detach": False, "Tty": False}, expect=(404, 409)
    ) as answer:
        if answer is None:
            raise Conflict("The sandbox does not run and accepts no commands")
        async for stream, data in frames(answer.content):
            output.add(stream, data)


async def _exit_code(engine: Engine, exec_id: str) -> int:
    # The command may close its output before it ends, and the engine reports the end a moment
    # later.
    while (seen := await engine.get(f"exec/{exec_id}/json")) is not None:
        if not seen.get("Running"):
            return int(seen.get("ExitCode") or 0)
        await asyncio.sleep(_POLL_SECONDS)
    raise Conflict("The sandbox has ended while it ran a command")


async def _kill_marked(engine: Engine, container_id: str, mark: str) -> None:
    """Kill the processes with the mark; if the sandbox is gone, there is nothing left to kill."""
    argv = ["/bin/sh", "-c", _KILL, f"{_MARK}={mark}", str(_limit_of(mark) * _KIBIBYTE)]
    try:
        exec_id = await _create_exec(engine, container_id, argv, {}, mark="none")
        async with asyncio.timeout(_ROUNDS):
            await _read_output(engine, exec_id, Output(limit=0))
    except (AgentsvcError, TimeoutError):
        return


def _limit_of(mark: str) -> int:
    """Return the KiB number for a mark: more than any machine has, and not a round one."""
    return 2**40 + int(mark[:10], 16)
