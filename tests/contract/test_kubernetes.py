"""The kubernetes backend keeps the contract, at an API server and a node of the tests' own.

The same kit is run against a real cluster by `poe live-kubernetes`.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from agentsvc.plugin.backend import BackendContext, RuntimeBackend
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing import WORKLOAD, KitOptions, backend_contract
from agentsvc.testing.checks import CHECKS
from agentsvc.testing.kit import run_check
from tests.kube.snapshots import SnapshotApi

pytestmark = pytest.mark.timeout(300)

KIND = PluginHost.load().backend_types()["kubernetes"]
_APIS: Final[list[tuple[SnapshotApi, Path]]] = []


@pytest.fixture(scope="module", autouse=True)
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SnapshotApi]:
    """Run the API server as long as the kit runs."""
    directory = tmp_path_factory.mktemp("kube")
    with SnapshotApi(directory / "volumes") as server:
        _APIS.append((server, server.kubeconfig(directory / "config")))
        yield server
        _APIS.pop()


@asynccontextmanager
async def unreachable(_backend: RuntimeBackend[Any]) -> AsyncIterator[None]:
    """Cut the API server off; its pods run all the time."""
    server, _ = _APIS[0]
    server.cut(is_cut=True)
    # What it has just heard it still says for a moment.
    await asyncio.sleep(1)
    try:
        yield
    finally:
        server.cut(is_cut=False)


def _here(reach: str) -> tuple[type[RuntimeBackend[Any]], Any]:
    """Return a kind of backend that gets the way to the API server when it is made."""

    def make(self: RuntimeBackend[Any], _config: Any, context: BackendContext) -> None:
        _, kubeconfig = _APIS[0]
        config = KIND.Config(
            kubeconfig=str(kubeconfig),
            reach=reach,
            server_cidrs=("127.0.0.0/8",),
            stop_seconds=1,
            request_seconds=5.0,
        )
        KIND.__init__(self, config, context)

    return type(KIND.__name__, (KIND,), {"__init__": make}), KIND.Config()


OPTIONS: Final = KitOptions(
    order_overrides={
        "image": "python:3.13-slim",
        "command": ("python3", "-c", WORKLOAD),
        # Where this node runs pods, nothing hides a sandbox's checkpoints from itself.
        "working_dir": "project",
    },
    enforced_limits=frozenset({"cpus", "memory_bytes"}),
    unreachable=unreachable,
    quiet_seconds=0.3,
)

TestByAddress = backend_contract(*_here("pod"), OPTIONS)

THROUGH: Final = (
    "a_created_sandbox_runs_and_its_ports_answer",
    "a_new_instance_answers_for_what_an_old_one_made",
    "after_delete_nothing_answers_and_scan_is_empty",
    "after_delete_nothing_is_left_on_the_host",
    "close_leaves_sandboxes_running",
)
"""What the way to a sandbox has a part in."""


@pytest.mark.parametrize("name", THROUGH)
def test_it_keeps_the_contract_by_port_forward(name: str) -> None:
    [check] = [check for check in CHECKS if check.name == name]
    asyncio.run(run_check(check, *_here("port-forward"), OPTIONS))
