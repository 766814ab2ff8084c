"""The conformance kit on real engines: our docker backend on Docker."""

import asyncio

import pytest

from agentsvc.plugins import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions
from agentsvc.testing.checks import CHECKS, Check
from agentsvc.testing.kit import run_check
from tests.live.containers import EVERYWHERE, Engine

pytestmark = [pytest.mark.live, pytest.mark.timeout(180, func_only=True)]

KIND = PluginHost.load().backend_types()["docker"]


def options_of(engine: Engine) -> KitOptions:
    return KitOptions(
        order_overrides={
            "image": engine.image,
            "command": ("python3", "-c", WORKLOAD),
            "env": {"KIT_HOST": EVERYWHERE},
        },
        beacon_host=engine.address,
        leftovers=engine.left,
        enforced_limits=frozenset({"cpus", "memory_bytes", "pids"}),
        quiet_seconds=0.5,
        time_limit=150,
    )


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_docker_keeps_the_contract(check: Check, engine: Engine) -> None:
    options = options_of(engine)
    if reason := check.why_skipped(KIND, options):
        pytest.skip(reason)
    asyncio.run(run_check(check, KIND, KIND.Config(host=engine.url, guard_host=False), options))
