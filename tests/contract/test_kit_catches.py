"""For every check of the kit there is a backend, broken on purpose, that it catches.

Each fault names the checks that fail on it, the one it is made for first; on all others it
must pass, or the kit would blame the wrong thing.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from process.backend import ProcessBackend
from process.settings import ProcessConfig

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
    RuntimeBackend,
    SaveHandle,
    Spec,
    Usage,
)
from agentsvc.testing import (
    WORKLOAD,
    CheckResult,
    FakeBackend,
    FakeConfig,
    FakeWorld,
    KitOptions,
    Outcome,
    backend_contract,
    check_backend,
)
from agentsvc.testing.backend import FakeSandbox
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.kit import run_check

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


FAULTS: list[tuple[type[FakeBackend], set[str]]] = [
    (ConfirmsAnything, {"what_has_the_address_of_another_sandbox_is_not_confirmed"}),
    (ReturnsAnotherHandle, {"the_handle_is_saved_before_create_returns"}),
    (HasHandlesThatAreNotJson, {"the_handle_survives_json_and_holds_no_secret"}),
    (MakesItAnew, {"the_same_order_twice_gives_one_sandbox"}),
    (
        RemembersOneOrder,
        {
            "different_orders_at_once_give_different_sandboxes",
            # They make several at once, too.
            "a_workload_that_exits_is_failed_with_its_exit_code",
            "delete_works_in_every_phase_and_twice",
            "after_delete_nothing_is_left_on_the_host",
        },
    ),
    (ListsLate, {"a_cancelled_create_leaves_nothing_unseen"}),
    (ForgivesTheDisk, {"a_save_that_fails_makes_create_fail_and_delete_cleans_up"}),
    (TakesStrangersForFailed, {"a_sandbox_that_never_was_is_gone"}),
    (LosesTheExitCode, {"a_workload_that_exits_is_failed_with_its_exit_code"}),
    (KeepsTheFailed, {"delete_works_in_every_phase_and_twice"}),
    (
        DeletesOnPaper,
        {
            "after_delete_nothing_answers_and_scan_is_empty",
            "a_cancelled_create_leaves_nothing_unseen",
            "a_save_that_fails_makes_create_fail_and_delete_cleans_up",
        },
    ),
    (LeavesAFile, {"after_delete_nothing_is_left_on_the_host"}),
    (ListsEverybodys, {"scan_lists_only_what_its_own_instance_made"}),
    (
        KnowsItsOwnOnly,
        {
            "close_leaves_sandboxes_running",
            "a_new_instance_answers_for_what_an_old_one_made",
            "a_sandbox_on_disk_goes_on_where_it_was",
        },
    ),
    (
        TakesThemAlong,
        {"close_leaves_sandboxes_running", "a_new_instance_answers_for_what_an_old_one_made"},
    ),
    (
        PausesInName,
        {
            "a_paused_sandbox_rests_and_goes_on_with_its_files",
            "a_sandbox_on_disk_goes_on_where_it_was",
        },
    ),
    (
        StopsInName,
        {
            "a_paused_sandbox_rests_and_goes_on_with_its_files",
            "a_sandbox_on_disk_goes_on_where_it_was",
            "a_stopped_sandbox_keeps_its_files_only",
            "a_sandbox_goes_back_to_its_checkpoints",
        },
    ),
    (ReclaimsInName, {"a_reclaimed_sandbox_goes_on_where_it_was"}),
    (
        KeepsInName,
        {
            "a_sandbox_begins_with_a_copy_of_a_layer",
            "a_sandbox_begins_with_the_files_of_another",
            "a_sandbox_goes_back_to_its_checkpoints",
        },
    ),
    *(
        (one, {"a_sandbox_on_disk_goes_on_where_it_was"})
        for one in (HibernatesInName, LosesOnDisk, NeverLeavesDisk)
    ),
    (GuessesAtUse, {"what_a_sandbox_is_said_to_use_grows_with_its_work"}),
    (PausesToGiveWay, {"one_that_gives_way_goes_on"}),
    (
        FreezesForStop,
        {
            "a_sandbox_on_disk_goes_on_where_it_was",
            "a_stopped_sandbox_keeps_its_files_only",
            "a_sandbox_begins_with_a_copy_of_a_layer",
            "a_sandbox_goes_back_to_its_checkpoints",
        },
    ),
    (
        BeginsEmpty,
        {
            "a_sandbox_begins_with_a_copy_of_a_layer",
            "a_sandbox_begins_with_the_files_of_another",
        },
    ),
    (RestartsFromNothing, {"a_failed_sandbox_starts_again_on_its_files"}),
    (LogsNewestFirst, {"logs_are_in_order_and_end_at_delete"}),
    (IgnoresLimits, {"limits_that_are_not_enforced_are_refused"}),
    (IgnoresFloors, {"what_is_not_fenced_is_refused_and_what_is_reported_is"}),
    (DoesMoreThanItSays, {"an_undeclared_capability_is_unsupported"}),
    (GuessesAtNewHandles, {"a_handle_of_a_newer_version_is_refused"}),
    (TakesSilenceForAbsence, {"an_unreachable_control_plane_is_not_gone"}),
    (LogsSecrets, {"a_secret_arrives_and_shows_nowhere_else"}),
    (Blocks, {"no_call_blocks_the_event_loop"}),
]

PROCESS_FAULTS: list[tuple[type[ProcessBackend], str]] = [
    (SaysAllWentWell, "execute_gives_code_streams_and_environment"),
    (KillsTheParentOnly, "execute_ends_the_command_and_its_children_in_time"),
]

FIRST = "a_created_sandbox_runs_and_its_ports_answer"


@contextmanager
def on_a_world(broken: type[FakeBackend]) -> Iterator[tuple[type[FakeBackend], KitOptions]]:
    world = FakeWorld()

    @asynccontextmanager
    async def unreachable(_backend: RuntimeBackend[Any]) -> AsyncIterator[None]:
        world.unreachable = True
        yield
        world.unreachable = False

    options = KitOptions(unreachable=unreachable, quiet_seconds=0.15, time_limit=4)
    try:
        yield type(broken.__name__, (broken,), {"world": world}), options
    finally:
        world.close()
        for sandbox in world.__dict__.get("strays", []):
            sandbox.remove()


async def failing(broken: type[FakeBackend], checks: Iterable[Check]) -> set[str]:
    """Return the names of the checks that fail, each run in a world of its own."""

    async def fails(check: Check) -> bool:
        with on_a_world(broken) as (kind, options):
            if check.why_skipped(kind, options):
                return False
            try:
                await run_check(check, kind, FakeConfig(), options)
            except Exception:  # noqa: BLE001  # whatever it raises, it has failed
                return True
            return False

    async with asyncio.TaskGroup() as group:
        tasks = {check.name: group.create_task(fails(check)) for check in checks}
    return {name for name, task in tasks.items() if task.result()}


@pytest.mark.parametrize(("broken", "caught_by"), FAULTS)
async def test_the_kit_catches_a_broken_backend(
    broken: type[FakeBackend], caught_by: set[str]
) -> None:
    # What measures time runs alone.
    alone = [check for check in CHECKS if check.name == "no_call_blocks_the_event_loop"]
    together = [check for check in CHECKS if check not in alone]
    found = await failing(broken, together) | await failing(broken, alone)
    # A busy machine may fail a check more, but not where it runs alone.
    for check in CHECKS:
        if check.name in found - caught_by and not await failing(broken, [check]):
            found.discard(check.name)
    assert found == caught_by


@pytest.mark.parametrize(("broken", "caught_by"), PROCESS_FAULTS)
async def test_the_kit_catches_a_broken_execute(
    broken: type[ProcessBackend], caught_by: str
) -> None:
    options = KitOptions(order_overrides={"command": ("{python}", "-I", "-c", WORKLOAD)})
    [check] = [check for check in CHECKS if check.name == caught_by]
    with pytest.raises(AssertionError):
        await run_check(check, broken, ProcessConfig(use_bubblewrap=False), options)


async def test_the_kit_catches_a_backend_that_serves_elsewhere() -> None:
    assert FIRST in await failing(ServesElsewhere, CHECKS[:1])


def test_every_check_has_a_backend_that_it_catches() -> None:
    caught = {FIRST, *(name for _, name in PROCESS_FAULTS)}
    caught |= {name for _, names in FAULTS for name in names}
    assert caught == {check.name for check in CHECKS}


async def test_the_kit_asks_backend_and_author_what_is_left() -> None:
    [check] = [
        check for check in CHECKS if check.name == "after_delete_nothing_is_left_on_the_host"
    ]

    async def kept(_instance_id: str) -> list[str]:
        return ["a volume"]

    async def nothing(_instance_id: str) -> list[str]:
        return []

    class Says(FakeBackend):
        async def leftovers(self) -> Sequence[str]:
            return ["a network"]

    for broken, told, complaint in (
        (Says, kept, "this is left: a network, a volume"),
        (FakeBackend, nothing, "leftovers names nothing of a sandbox that runs"),
    ):
        with (
            on_a_world(broken) as (kind, options),
            pytest.raises(AssertionError, match=complaint),
        ):
            await run_check(check, kind, FakeConfig(), replace(options, leftovers=told))


async def test_results_without_pytest_say_what_failed_and_why() -> None:
    with on_a_world(LosesTheExitCode) as (kind, options):
        results = [result async for result in check_backend(kind, FakeConfig(), options)]
    assert [result.name for result in results] == [check.name for check in CHECKS]
    [failed] = [result for result in results if result.outcome is Outcome.FAILED]
    assert failed == CheckResult(
        name="a_workload_that_exits_is_failed_with_its_exit_code",
        outcome=Outcome.FAILED,
        reason="AssertionError: the exit code is None, not 7",
    )
    skipped = {result.reason for result in results if result.outcome is Outcome.SKIPPED}
    assert skipped == {"it does not declare execute"}


def test_an_expected_failure_must_be_a_check() -> None:
    with pytest.raises(ValueError, match="no such check: flies"):
        backend_contract(FakeBackend, FakeConfig(), expect_failures={"flies": "it has no wings"})


with on_a_world(LosesTheExitCode) as (_kind, _options):
    TestExpectedFailure = backend_contract(
        _kind,
        FakeConfig(),
        _options,
        expect_failures={
            "a_workload_that_exits_is_failed_with_its_exit_code": "it loses the exit code"
        },
    )
