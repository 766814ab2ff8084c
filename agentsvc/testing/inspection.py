"""Assertions of the conformance kit that do not rely on the backend."""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import msgspec

from agentsvc.plugin import Capability, Handle, ImageBuild, Order, PausedAs, Phase, Report, Usage
from agentsvc.testing.rig import LoopWatch, Rig, expect
from agentsvc.testing.workload import WORK_SECONDS


async def is_served(rig: Rig, report: Report) -> bool:
    """Return whether one of the ordered workloads answers at the endpoint in a report."""
    # If unassigned addresses lead to a proxy, that may answer.
    try:
        answer = await rig.ask(report, "GET", "/name")
    except (OSError, AssertionError):
        return False
    return answer.decode(errors="replace") in rig.ordered


async def still_seconds(rig: Rig) -> dict[str, float]:
    """Call each method of a backend; return how long each blocked the event loop."""
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
    """Stop a sandbox and check that nothing runs; restart it and check its files."""
    for _ in range(2):
        await rig.backend.stop(handle)
        seen = await rig.backend.inspect(handle)
        is_said = (seen.phase, seen.paused_as) == (Phase.PAUSED, PausedAs.STOPPED)
        expect(is_said, f"after stop it is {seen.phase} as {seen.paused_as}")
    await rig.expect_unheard(handle, "its workload runs although it is stopped")
    again = await rig.backend.restart(order, handle, rig.save_to(order.sandbox_id))
    report = await rig.wait(again, Phase.RUNNING)
    expect(await rig.ask(report, "GET", "/files/note") == b"kept", "its files are not the same")
    last_run = await rig.ask(report, "GET", "/run")
    expect(last_run not in rig.runs, "its command goes on, and was not ended")
    rig.runs.add(last_run)
    return again


async def check_usage(rig: Rig, handle: Handle, report: Report, before: Usage) -> None:
    """Make the workload use CPU, and wait until the reported usage has grown."""
    for name, value in msgspec.structs.asdict(before).items():
        expect(value is None or value >= 0, f"{name} is {value}")
    expect(before.memory_bytes != 0, "it runs and uses no memory")
    if before.cpu_seconds is None:
        return
    least = before.cpu_seconds + WORK_SECONDS / 2
    await rig.ask(report, "GET", "/work")

    async def is_seen() -> bool:
        seen = await rig.backend.usage(handle)
        return seen is not None and (seen.cpu_seconds or 0) >= least

    await rig.until(is_seen)


def calls_of(
    rig: Rig, order: Order, handle: Handle
) -> Mapping[Capability, Callable[[], Awaitable[object]]]:
    """Return, for each capability with a method, a function that calls the method."""

    async def logs() -> None:
        async for _ in rig.backend.logs(handle, tail=1, follow=False):
            pass

    return {
        Capability.PAUSE: lambda: rig.backend.pause(handle),
        Capability.RECLAIM: lambda: rig.backend.reclaim(handle),
        Capability.HIBERNATE: lambda: rig.backend.hibernate(handle),
        Capability.STOP: lambda: rig.backend.stop(handle),
        Capability.RESTART: lambda: rig.backend.restart(
            order, handle, rig.save_to(order.sandbox_id)
        ),
        Capability.EXECUTE: lambda: rig.backend.execute(
            handle, ["true"], env={}, time_limit=1, max_output=1
        ),
        Capability.LOGS: logs,
        Capability.LAYERS: lambda: rig.backend.keep_layer(handle, "0", max_bytes=1),
        Capability.IMAGES: lambda: rig.backend.build_image(
            "0", ImageBuild(context=Path(), dockerfile="", time_limit=1)
        ),
        Capability.CHECKPOINTS: lambda: rig.backend.roll_back(handle, "0"),
    }


class LogRecords(logging.Handler):
    """Collects all log records."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Store one record with all its attributes."""
        self._texts.append(f"{record.getMessage()} {record.__dict__}")

    def text(self) -> str:
        """Return all records as text."""
        return "\n".join(self._texts)


def all_arguments() -> str:
    """Return the arguments of every visible process of this machine."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(file.read_text(errors="replace"))
    return "\n".join(found)
