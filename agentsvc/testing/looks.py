"""What the checks of the kit look at besides what a backend says."""

import contextlib
import logging
from pathlib import Path

from agentsvc.backend import Capability, Handle, Order, PausedAs, Phase, Report
from agentsvc.testing.rig import LoopWatch, Rig, expect


async def is_served(rig: Rig, report: Report) -> bool:
    """Whether one of the ordered workloads answers at what a report names."""
    # Where addresses of nobody lead to a proxy, that one may answer.
    try:
        answer = await rig.ask(report, "GET", "/name")
    except (OSError, AssertionError):
        return False
    return answer.decode(errors="replace") in rig.ordered


async def still_seconds(rig: Rig) -> dict[str, float]:
    """Call each method of a backend; return how long each kept the event loop from turning."""
    watch = LoopWatch()
    order = rig.order()
    save = rig.save_to(order.sandbox_id)
    still = {"create": await watch.measure(rig.backend.create(order, save))}
    [handle] = [item.handle for item in await rig.backend.scan()]
    await rig.wait(handle, Phase.RUNNING)
    still["inspect"] = await watch.measure(rig.backend.inspect(handle))
    still["scan"] = await watch.measure(rig.backend.scan())
    still["probe"] = await watch.measure(rig.backend.probe())
    if Capability.PAUSE in rig.kind.capabilities:
        still["pause"] = await watch.measure(rig.backend.pause(handle))
        still["resume"] = await watch.measure(rig.backend.resume(handle))
    if Capability.EXECUTE in rig.kind.capabilities:
        work = rig.backend.execute(handle, ["true"], env={}, time_limit=10, max_output=10)
        still["execute"] = await watch.measure(work)
    still["delete"] = await watch.measure(rig.backend.delete(handle))
    return still


async def stopped_and_started(rig: Rig, order: Order, handle: Handle) -> Handle:
    """Stop a sandbox, see that nothing of it runs, start it again, and see that its files are."""
    for _ in range(2):
        await rig.backend.stop(handle)
        seen = await rig.backend.inspect(handle)
        is_said = (seen.phase, seen.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)
        expect(is_said, f"after stop it is {seen.phase} as {seen.paused_as}")
    heard = await rig.is_heard(order.sandbox_id)
    expect(not heard, "its workload runs although it is stopped")
    again = await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
    report = await rig.wait(again, Phase.RUNNING)
    expect(await rig.ask(report, "GET", "/files/note") == b"kept", "its files are not the same")
    last_run = await rig.ask(report, "GET", "/run")
    expect(last_run not in rig.runs, "its command goes on, and was not ended")
    rig.runs.add(last_run)
    return again


class Records(logging.Handler):
    """Keeps all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record with all that goes with it."""
        self._texts.append(f"{record.getMessage()} {record.__dict__}")

    def text(self) -> str:
        """Return all of it."""
        return "\n".join(self._texts)


def all_arguments() -> str:
    """Return the arguments of every process of this machine that may be seen."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return "\n".join(found)
