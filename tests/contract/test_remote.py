"""Both kinds of remote backend keep the contract, with a real server on the other side."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from agentsvc.plugin.backend import BackendContext, Port, RuntimeBackend
from agentsvc.testing import KitOptions, backend_contract
from tests.far import KINDS, FarServer

pytestmark = pytest.mark.timeout(120)

_FAR: Final[list[FarServer]] = []


@pytest.fixture(scope="module", autouse=True)
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarServer]:
    """Run the other server as long as the kit runs."""
    server = FarServer(tmp_path_factory.mktemp("far"))
    asyncio.run(server.start())
    _FAR.append(server)
    yield server
    _FAR.remove(server)
    asyncio.run(server.close())


@asynccontextmanager
async def unreachable(_backend: RuntimeBackend[Any]) -> AsyncIterator[None]:
    """End the other server, and start it again on its data; its sandboxes run all the time."""
    await _FAR[0].end()
    try:
        yield
    finally:
        await _FAR[0].start()


def _at_far(name: str) -> tuple[type[RuntimeBackend[Any]], Any]:
    """Return a kind of backend that gets the address of the other server when it is made."""
    kind = KINDS[name]

    def make(self: RuntimeBackend[Any], _config: Any, context: BackendContext) -> None:
        kind.__init__(self, _FAR[0].config_of(name), context)

    here = type(kind.__name__, (kind,), {"__init__": make})
    return here, kind.Config(url="http://127.0.0.1:1")


TestRuntimeApi = backend_contract(
    *_at_far("remote"),
    KitOptions(
        order_overrides={"image": "agent", "command": None, "env": {"KIT_PORT": "unused"}},
        unreachable=unreachable,
        quiet_seconds=0.5,
    ),
)
TestAnotherServer = backend_contract(
    *_at_far("agentsvc"),
    KitOptions(
        order_overrides={
            "image": "web",
            "command": None,
            "ports": (Port(name="web"),),
            "env": {"KIT_PORT": "unused"},
        },
        unreachable=unreachable,
        quiet_seconds=0.5,
    ),
)


def agentsvc(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentsvc", "plugins", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_another_server_is_checked_from_the_command_line(tmp_path: Path) -> None:
    """What `plugins workload` prints goes into its config, and the kit runs there."""
    printed = agentsvc("workload")
    assert (printed.returncode, printed.stderr) == (0, "")
    server = FarServer(tmp_path, printed.stdout)
    config = tmp_path / "here.toml"
    config.write_text(
        f'[backends.big]\ntype = "agentsvc"\nurl = "{server.url}"\n'
        f'api_key = "{server.key.reveal()}"\n'
    )
    here = ("--config", str(config))
    asyncio.run(server.start())
    try:
        refused = agentsvc("check", "big", *here)
        found = agentsvc(
            *("check", "big", "--spec", "kit", *here),
            *("--only", "a created sandbox runs and its ports answer"),
            *("--only", "after_delete_nothing_answers_and_scan_is_empty"),
        )
    finally:
        asyncio.run(server.close())
    assert refused.returncode == 1
    assert "`agentsvc plugins workload` prints, with --spec" in refused.stderr
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.endswith("2 passed, 0 failed, 0 skipped\n")
