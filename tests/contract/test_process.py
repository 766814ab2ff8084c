"""The process backend keeps the contract, with bubblewrap, control groups and forks and without."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.plugin.backend import RuntimeBackend
from agentsvc.testing import WORKLOAD, KitOptions, backend_contract


@asynccontextmanager
async def unreachable(backend: RuntimeBackend[Any]) -> AsyncIterator[None]:
    """Take the disk away, as one that is not mounted."""
    here = backend.context.state_dir
    away = Path(f"{here}.away")
    await asyncio.to_thread(here.rename, away)
    try:
        yield
    finally:
        await asyncio.to_thread(away.rename, here)


OPTIONS = KitOptions(
    order_overrides={"command": ("{python}", "-I", "-c", WORKLOAD)},
    unreachable=unreachable,
    quiet_seconds=0.5,
)

PLAIN = ProcessConfig(zygote=False, use_bubblewrap=False)

# Where no control group can be made, the first of each pair proves the same as the second; where
# bubblewrap does not work, both pairs do.
TestWithControlGroups = backend_contract(ProcessBackend, PLAIN, OPTIONS)
TestWithSignalsOnly = backend_contract(
    ProcessBackend, ProcessConfig(zygote=False, use_bubblewrap=False, use_cgroups=False), OPTIONS
)
TestInBubblewrap = backend_contract(
    ProcessBackend, ProcessConfig(zygote=False, use_bubblewrap=True), OPTIONS
)
TestInBubblewrapWithSignalsOnly = backend_contract(
    ProcessBackend, ProcessConfig(zygote=False, use_bubblewrap=True, use_cgroups=False), OPTIONS
)


class LoadedBackend(ProcessBackend):
    """Makes sandboxes that are forks of a process that has loaded the kit's program."""

    program: ClassVar[str] = "tests.contract.forked_workload"
    preload: ClassVar[str] = "tests.contract.loaded_workload"


FORKED = KitOptions(
    order_overrides={"command": ("{python}", "-m", LoadedBackend.program)},
    unreachable=unreachable,
    quiet_seconds=0.5,
)

TESTS = (str(Path(__file__).parents[1]),)

TestOfForksInBubblewrap = backend_contract(
    LoadedBackend, ProcessConfig(use_bubblewrap=True, zygote=True, readable=TESTS), FORKED
)
