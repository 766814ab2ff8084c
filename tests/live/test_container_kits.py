"""The conformance kit on real engines: our docker backend on Docker, on Podman and in gVisor."""

import asyncio
from typing import Any

import pytest

from agentsvc.plugin.backend import Network
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.kit import run_check
from agentsvc.testing.rig import open_rig
from tests.live.containers import EVERYWHERE, Engine

pytestmark = [pytest.mark.live, pytest.mark.timeout(180, func_only=True)]

KIND = PluginHost.load().backend_types()["docker"]
ENFORCED = frozenset({"cpus", "memory_bytes", "pids"})

# What another runtime could do otherwise; the rest is the engine's and the backend's own doing, or
# is part of these: each of them needs a sandbox that runs, answers and is gone in the end.
IN_GVISOR = (
    "a_workload_that_exits_is_failed_with_its_exit_code",
    "after_delete_nothing_is_left_on_the_host",
    "what_a_sandbox_is_said_to_use_grows_with_its_work",
    "a_paused_sandbox_rests_and_goes_on_with_its_files",
    "a_stopped_sandbox_keeps_its_files_only",
    "a_sandbox_begins_with_a_copy_of_a_layer",
    "a_sandbox_goes_back_to_its_checkpoints",
    "a_sandbox_begins_with_the_files_of_another",
    "execute_gives_code_streams_and_environment",
    "execute_ends_the_command_and_its_children_in_time",
    "limits_that_are_not_enforced_are_refused",
    "what_is_not_fenced_is_refused_and_what_is_reported_is",
    "a_secret_arrives_and_shows_nowhere_else",
)
CHECKS_BY_NAME = {check.name: check for check in CHECKS}


def options_of(engine: Engine, enforced: frozenset[str] = ENFORCED) -> KitOptions:
    return KitOptions(
        order_overrides={
            "image": engine.image,
            "command": ("python3", "-c", WORKLOAD),
            "env": {"KIT_HOST": EVERYWHERE},
        },
        beacon_host=engine.address,
        leftovers=engine.left,
        enforced_limits=enforced,
        quiet_seconds=0.5,
        time_limit=150,
    )


def hold(check: Check, options: KitOptions, **config: Any) -> None:
    if reason := check.why_skipped(KIND, options):
        pytest.skip(reason)
    asyncio.run(run_check(check, KIND, KIND.Config(guard_host=False, **config), options))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_docker_keeps_the_contract(check: Check, engine: Engine) -> None:
    hold(check, options_of(engine), host=engine.url)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_podman_keeps_the_contract(check: Check, podman: Engine) -> None:
    hold(check, options_of(podman), host=podman.url)


@pytest.mark.parametrize("name", IN_GVISOR)
def test_gvisor_keeps_the_contract(name: str, gvisor: Engine) -> None:
    options = options_of(gvisor, ENFORCED - {"pids"})
    hold(CHECKS_BY_NAME[name], options, host=gvisor.url, runtime="runsc")


async def test_a_sandbox_in_gvisor_has_another_kernel(gvisor: Engine) -> None:
    config = KIND.Config(host=gvisor.url, runtime="runsc")
    async with open_rig(KIND, config, options_of(gvisor)) as rig:
        handle, _ = await rig.run(rig.order(network=Network.NONE))
        told = await rig.backend.execute(
            handle, ["dmesg"], env={}, time_limit=60, max_output=10_000
        )
        assert b"Starting gVisor" in told.stdout
