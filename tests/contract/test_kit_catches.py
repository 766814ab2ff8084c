"""For every check of the kit there is a backend, broken on purpose, that it catches.

Each fault names the checks that fail on it, the one it is made for first; on all others it
must pass, or the kit would blame the wrong thing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import pytest
from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.plugin.backend import RuntimeBackend
from agentsvc.testing import (
    WORKLOAD,
    CheckResult,
    CheckStatus,
    FakeBackend,
    FakeConfig,
    FakeWorld,
    KitOptions,
    backend_contract,
    check_backend,
)
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.kit import run_check
from tests.contract.broken_backends import (
    BeginsEmpty,
    Blocks,
    ConfirmsAnything,
    DeletesOnPaper,
    DoesMoreThanItSays,
    ForgivesTheDisk,
    FreezesForStop,
    GuessesAtNewHandles,
    GuessesAtUse,
    HasHandlesThatAreNotJson,
    HibernatesInName,
    IgnoresFloors,
    IgnoresLimits,
    KeepsInName,
    KeepsTheFailed,
    KillsTheParentOnly,
    KnowsItsOwnOnly,
    LeavesAFile,
    ListsEverybodys,
    ListsLate,
    LogsNewestFirst,
    LogsSecrets,
    LosesOnDisk,
    LosesTheExitCode,
    MakesItAnew,
    NeverLeavesDisk,
    PausesInName,
    PausesToGiveWay,
    ReclaimsInName,
    RemembersOneOrder,
    RestartsFromNothing,
    ReturnsAnotherHandle,
    SaysAllWentWell,
    ServesElsewhere,
    StopsInName,
    TakesSilenceForAbsence,
    TakesStrangersForFailed,
    TakesThemAlong,
)

replace = msgspec.structs.replace


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
        # Checkpoints may be kept all the same.
        KeepsInName,
        {
            "a_sandbox_begins_with_a_copy_of_a_layer",
            "a_sandbox_begins_with_the_files_of_another",
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
    [failed] = [result for result in results if result.outcome is CheckStatus.FAILED]
    assert failed == CheckResult(
        name="a_workload_that_exits_is_failed_with_its_exit_code",
        outcome=CheckStatus.FAILED,
        reason="AssertionError: the exit code is None, not 7",
    )
    skipped = {result.reason for result in results if result.outcome is CheckStatus.SKIPPED}
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
