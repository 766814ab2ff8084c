"""Backends that are broken on purpose, each in one way."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from process.backend import ProcessBackend

from agentsvc.base.errors import BackendUnavailable
from agentsvc.plugin.backend import (
    Capability,
    Endpoint,
    ExecResult,
    Found,
    Handle,
    Health,
    Limits,
    LogLine,
    Order,
    PausedAs,
    Phase,
    Report,
    SaveHandle,
    Spec,
    Usage,
)
from agentsvc.testing import (
    FakeBackend,
    FakeWorld,
)
from agentsvc.testing.backend import FakeSandbox

log = logging.getLogger(__name__)

replace = msgspec.structs.replace


def stray(world: FakeWorld, sandbox: FakeSandbox) -> None:
    """Remember a sandbox that a fault may lose, so that the test can end it."""
    world.__dict__.setdefault("strays", []).append(sandbox)


class ServesElsewhere(FakeBackend):
    """Reports an address where another sandbox, or nobody, answers."""

    async def inspect(self, handle: Handle) -> Report:
        report = await super().inspect(handle)
        urls = [f"http://127.0.0.1:{1 + number}" for number in range(len(report.endpoints))]
        moved = zip(report.endpoints, urls, strict=True)
        return replace(report, endpoints=tuple(replace(item, url=url) for item, url in moved))


class ReturnsAnotherHandle(FakeBackend):
    """Knows more at the end of create, and does not save it."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        return replace(await super().create(order, save), data={"more": "is known"})


class HasHandlesThatAreNotJson(FakeBackend):
    """Puts a tuple into the handle, which comes back as a list."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        async def save_pair(handle: Handle) -> None:
            await save(replace(handle, data={"pair": (1, 2)}))

        return replace(await super().create(order, save_pair), data={"pair": (1, 2)})


class MakesItAnew(FakeBackend):
    """Takes the same order for a new one."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        if sandbox := self.world.sandboxes.pop(order.sandbox_id, None):
            await asyncio.to_thread(sandbox.remove)
        return await super().create(order, save)


class RemembersOneOrder(FakeBackend):
    """Keeps the order on the instance while it waits."""

    _order: Order

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        self._order = order
        await asyncio.sleep(0.01)
        return await super().create(self._order, save)


class ListsLate(FakeBackend):
    """Starts the workload first and makes a note of it afterwards."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        self.check_fences(order)
        is_new = order.sandbox_id not in self.world.sandboxes
        if order.limits == Limits() and is_new and not (order.layer or order.copy_of):
            sandbox = FakeSandbox(order, self.context.instance_id)
            stray(self.world, sandbox)
            await asyncio.shield(asyncio.to_thread(sandbox.start, Phase.RUNNING))
            await asyncio.sleep(0.02)
            self.world.sandboxes[order.sandbox_id] = sandbox
        return await super().create(order, save)


class ForgivesTheDisk(FakeBackend):
    """Goes on when the handle cannot be saved."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        async def try_to_save(handle: Handle) -> None:
            try:
                await save(handle)
            except OSError:
                log.warning("handle not saved")

        return await super().create(order, try_to_save)


class TakesStrangersForFailed(FakeBackend):
    """Says of a sandbox it never made that it failed."""

    async def inspect(self, handle: Handle) -> Report:
        report = await super().inspect(handle)
        is_known = ("create", handle.sandbox_id) in self.world.calls
        return report if is_known else replace(report, phase=Phase.FAILED)


class LosesTheExitCode(FakeBackend):
    """Knows that a command ended, not how."""

    async def inspect(self, handle: Handle) -> Report:
        return replace(await super().inspect(handle), exit_code=None)


class KeepsTheFailed(FakeBackend):
    """Does not delete what has failed."""

    async def delete(self, handle: Handle) -> None:
        if (await self.inspect(handle)).phase is not Phase.FAILED:
            await super().delete(handle)


class DeletesOnPaper(FakeBackend):
    """Forgets a sandbox and leaves it running."""

    async def delete(self, handle: Handle) -> None:
        await self._find("delete", handle)
        if sandbox := self.world.sandboxes.pop(handle.sandbox_id, None):
            stray(self.world, sandbox)


class LeavesAFile(FakeBackend):
    """Keeps a note of each sandbox that it has deleted."""

    async def delete(self, handle: Handle) -> None:
        await super().delete(handle)
        note = self.context.state_dir / handle.sandbox_id
        await asyncio.to_thread(note.parent.mkdir, parents=True, exist_ok=True)
        await asyncio.to_thread(note.touch)


class ListsEverybodys(FakeBackend):
    """Does not look whose a sandbox is."""

    async def scan(self) -> Sequence[Found]:
        await super().scan()
        return [
            Found(handle=self._handle(sandbox_id), created_at=sandbox.created_at)
            for sandbox_id, sandbox in self.world.sandboxes.items()
        ]


class KnowsItsOwnOnly(FakeBackend):
    """Keeps on the instance what belongs into the handle."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        self.__dict__.setdefault("own", set()).add(order.sandbox_id)
        return await super().create(order, save)

    async def inspect(self, handle: Handle) -> Report:
        report = await super().inspect(handle)
        is_own = handle.sandbox_id in self.__dict__.get("own", ())
        return report if is_own else Report(phase=Phase.GONE)


class TakesThemAlong(FakeBackend):
    """Ends its sandboxes when it is closed."""

    async def close(self) -> None:
        for found in await self.scan():
            await self.delete(found.handle)


class PausesInName(FakeBackend):
    """Says that it paused."""

    async def pause(self, handle: Handle) -> None:
        await self._find("pause", handle)
        self.world.sandboxes[handle.sandbox_id].phase = Phase.PAUSED

    async def resume(self, handle: Handle) -> Handle:
        await self._find("resume", handle)
        self.world.sandboxes[handle.sandbox_id].phase = Phase.RUNNING
        return handle


class StopsInName(PausesInName):
    """Says that it stopped, and lets what was frozen go on."""

    async def stop(self, handle: Handle) -> None:
        await self.pause(handle)
        self.world.sandboxes[handle.sandbox_id].paused_as = PausedAs.STOPPED

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        if (await self.inspect(handle)).phase is Phase.PAUSED:
            return await self.resume(handle)
        return await super().restart(order, handle, save)


class ReclaimsInName(FakeBackend):
    """Says that memory is out where it can go nowhere."""

    def why_no_reclaim(self) -> str:
        return "there is no swap"


class KeepsInName(FakeBackend):
    """Says that it keeps nothing here and now, and does."""

    def why_no_copies(self) -> str:
        return "there are no snapshots"


class HibernatesInName(FakeBackend):
    """Says that memory is on disk where it can be on none."""

    def why_no_hibernate(self) -> str:
        return "there is no gVisor"


class LosesOnDisk(FakeBackend):
    """Keeps the files only where it is to keep memory on disk."""

    async def hibernate(self, handle: Handle) -> None:
        await self.stop(handle)


class NeverLeavesDisk(FakeBackend):
    """Leaves on disk what is to be stopped."""

    async def stop(self, handle: Handle) -> None:
        sandbox = self.world.sandboxes.get(handle.sandbox_id)
        if sandbox is None or sandbox.paused_as is not PausedAs.ON_DISK:
            await super().stop(handle)


class FreezesForStop(FakeBackend):
    """Pauses where it is to stop, and does not hide it."""

    async def stop(self, handle: Handle) -> None:
        await self.pause(handle)


class BeginsEmpty(FakeBackend):
    """Takes layers and copies for granted, and begins with nothing."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        return await super().create(msgspec.structs.replace(order, layer="", copy_of=""), save)


class GuessesAtUse(FakeBackend):
    """Says what the machine uses, also of a sandbox that is not there."""

    async def usage(self, handle: Handle) -> Usage | None:
        return Usage(cpu_seconds=time.process_time(), memory_bytes=1024)


class PausesToGiveWay(FakeBackend):
    """Takes all of the processors from what is to leave them to others."""

    async def give_way(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            await super().pause(handle)


class RestartsFromNothing(FakeBackend):
    """Makes a failed sandbox anew, without its files."""

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        sandbox = await self._find("restart", handle)
        if sandbox is not None and sandbox.phase is Phase.FAILED:
            await super().delete(handle)
            return await super().create(order, save)
        return await super().restart(order, handle, save)


class SaysAllWentWell(ProcessBackend):
    """Gives every command the exit code 0."""

    async def execute(self, handle: Handle, argv: Sequence[str], **how: Any) -> ExecResult:
        result = await super().execute(handle, argv, **how)
        return result if result.timed_out else replace(result, exit_code=0)


class KillsTheParentOnly(ProcessBackend):
    """Ends the command at its time limit, and not what it started."""

    async def execute(
        self,
        handle: Handle,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        time_limit: float,
        max_output: int,
    ) -> ExecResult:
        script = f'"$@" & sleep {min(time_limit, 2)}; kill -9 $! 2>/dev/null'
        if time_limit > 1:
            script = '"$@"'
        result = await super().execute(
            handle, ["sh", "-c", script, "sh", *argv], env=env, time_limit=60, max_output=max_output
        )
        return replace(result, exit_code=None, timed_out=True) if time_limit <= 1 else result


class LogsNewestFirst(FakeBackend):
    """Gives the last line first."""

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        lines = [line async for line in super().logs(handle, tail=tail, follow=follow)]
        for line in reversed(lines):
            yield line


class IgnoresLimits(FakeBackend):
    """Takes every limit and enforces none."""

    def check_spec(self, spec: Spec) -> None:
        super().check_spec(replace(spec, limits=Limits()))

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        return await super().create(replace(order, limits=Limits()), save)


class IgnoresFloors(FakeBackend):
    """Makes what asks for more isolation than there is."""

    def check_fences(self, asked: Spec | Order) -> None:
        """Take everything."""


class DoesMoreThanItSays(FakeBackend):
    """Has logs without declaring them."""

    capabilities = FakeBackend.capabilities - {Capability.LOGS}


class GuessesAtNewHandles(FakeBackend):
    """Reads a handle of any version."""

    async def inspect(self, handle: Handle) -> Report:
        return await super().inspect(replace(handle, version=1))

    async def delete(self, handle: Handle) -> None:
        await super().delete(replace(handle, version=1))


class TakesSilenceForAbsence(FakeBackend):
    """Says gone where it could not find out."""

    async def inspect(self, handle: Handle) -> Report:
        try:
            return await super().inspect(handle)
        except BackendUnavailable:
            return Report(phase=Phase.GONE)


class LogsSecrets(FakeBackend):
    """Writes a whole order to the log."""

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        env = {name: value.reveal() for name, value in order.secret_env.items()}
        log.debug("creating", extra={"env": env})
        return await super().create(order, save)


class Blocks(FakeBackend):
    """Waits without giving way."""

    async def probe(self) -> Health:
        time.sleep(0.25)  # noqa: ASYNC251  # the fault
        return await super().probe()


class ConfirmsAnything(FakeBackend):
    """Takes whatever has an address for the sandbox that had it."""

    async def confirm(self, handle: Handle, endpoint: Endpoint, source_port: int) -> bool:
        return True
