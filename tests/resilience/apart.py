"""One row in a process of its own, so that several run beside each other and all of it can be ended.

What it finds goes to its standard output; everything else that it says goes to its standard error.
"""

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
import traceback
from asyncio.subprocess import Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from process.tree import Process as Seen
from process.tree import send, snapshot

from agentsvc.base.values import monotonic
from tests.resilience.book import Figure, Ground, Outcome, Row
from tests.resilience.rows import ROWS

_LONGEST_SECONDS: Final = 5400.0
_END_SECONDS: Final = 60.0
_SET_DEATH_SIGNAL: Final = 1
_LONGEST_LINE: Final = 2**26
_SHARED: Final = b"shared\n"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How large a row is to be, and what chance begins with."""

    scale: float
    seed: int


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """What a row has found, and how long that took."""

    outcome: Outcome
    seconds: float


async def run_apart(row: Row, run: Run, share: Callable[[], None]) -> Took:
    """Run a row in a process of its own; one that breaks off is missed. Cancelled, it ends it."""
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as directory:
        program = (sys.executable, "-m", "tests.resilience.apart", row.name, directory)
        began = monotonic()
        process = await asyncio.create_subprocess_exec(
            *program,
            msgspec.json.encode(run).decode(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env=_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                outcome = await _found(process, share)
        except TimeoutError:
            outcome = broken_off(f"not done after {_LONGEST_SECONDS:.0f} s")
        finally:
            await _end(process, directory)
        return Took(outcome=outcome, seconds=monotonic() - began)


def _environment() -> dict[str, str]:
    """Return an environment in which servers start as installed ones do, compiled already."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


async def _found(process: Process, share: Callable[[], None]) -> Outcome:
    assert process.stdout is not None
    async for line in process.stdout:
        if line == _SHARED:
            share()
        else:
            return msgspec.json.decode(line, type=Outcome)
    return broken_off(f"exit code {await process.wait()}")


async def _end(process: Process, directory: str) -> None:
    """Have it end, by force if it does not, and then whatever it has left behind."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
    while found := [one for one in snapshot().values() if _is_of(one, directory)]:
        for one in found:
            send(one, signal.SIGKILL)
        await asyncio.sleep(0.05)


def _is_of(process: Seen, directory: str) -> bool:
    """Say whether a process that lives was started by a row with this directory."""
    if process.state in ("Z", "X"):
        return False
    try:
        place = Path(f"/proc/{process.pid}")
        said = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(directory) in said


def broken_off(why: str, *problems: str) -> Outcome:
    """Return what is said of a row that has not come to its end."""
    figure = Figure(what="runs that broke off", value=1, at_most=0)
    return Outcome(did=f"broke off: {why}", figures=(figure,), problems=problems)


async def _run(row: Row, ground: Ground) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await row.run(ground)
    except Exception as exc:  # noqa: BLE001  # whatever it is, the other rows go on
        return broken_off(type(exc).__name__, traceback.format_exc())


def _main(name: str, directory: str, asked: str) -> None:
    # Nobody waits for it if the resilience tests itself was killed.
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGTERM)
    # Whatever else is printed must not get among what is found.
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0) as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        [row] = [row for row in ROWS if row.name == name]
        run = msgspec.json.decode(asked, type=Run)
        ground = Ground(
            Path(directory), scale=run.scale, seed=run.seed, share=lambda: _say(out.fileno())
        )
        try:
            outcome = asyncio.run(_run(row, ground))
        except asyncio.CancelledError:
            sys.exit("It was asked to end")
        _say(out.fileno(), msgspec.json.encode(outcome) + b"\n")


def _say(file: int, line: bytes = _SHARED) -> None:
    while line:
        line = line[os.write(file, line) :]


if __name__ == "__main__":
    _main(*sys.argv[1:])
