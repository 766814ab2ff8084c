"""The agent_sandbox backend keeps the contract, with sandboxes of its own and with those of a pool.

The API server, the node and the controller are the tests' own; the schemas are the published ones.
"""

import asyncio
import sys
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
from tests.kube.agent_sandbox import SandboxApi
from tests.plugins.agent_sandbox.pools import POOL, put_pool

pytestmark = pytest.mark.timeout(300)

KIND = PluginHost.load().backend_types()["agent_sandbox"]
_APIS: Final[list[tuple[SandboxApi, Path]]] = []


@pytest.fixture(scope="module", autouse=True)
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxApi]:
    """Run the API server as long as the kit runs."""
    directory = tmp_path_factory.mktemp("kube")
    with SandboxApi(directory / "volumes") as server:
        put_pool(server, replicas=2)
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


def _here(reach: str) -> type[RuntimeBackend[Any]]:
    """Return a kind of backend that gets the way to the API server when it is made."""

    def make(self: RuntimeBackend[Any], _config: Any, context: BackendContext) -> None:
        config = KIND.Config(
            kubeconfig=str(_APIS[0][1]),
            reach=reach,
            server_cidrs=("127.0.0.0/8",),
            stop_seconds=1,
            request_seconds=5.0,
        )
        KIND.__init__(self, config, context)

    return type(KIND.__name__, (KIND,), {"__init__": make})


def _options(limits: tuple[str, ...], **options: Any) -> KitOptions:
    command = (sys.executable, "-c", WORKLOAD)
    return KitOptions(
        order_overrides={"image": "agent:1", "command": command, "options": options},
        enforced_limits=frozenset(limits),
        unreachable=unreachable,
        quiet_seconds=0.3,
    )


BY_ADDRESS: Final = (_here("pod"), KIND.Config())
TestByThemselves = backend_contract(*BY_ADDRESS, _options(("cpus", "memory_bytes")))
TestOfAPool = backend_contract(*BY_ADDRESS, _options((), warm_pool=POOL))


@pytest.mark.parametrize(
    "name", ["a_created_sandbox_runs_and_its_ports_answer", "close_leaves_sandboxes_running"]
)
def test_one_of_a_pool_is_reached_through_the_api_server(name: str) -> None:
    [check] = [check for check in CHECKS if check.name == name]
    options = _options((), warm_pool=POOL)
    asyncio.run(run_check(check, _here("port-forward"), KIND.Config(), options))
