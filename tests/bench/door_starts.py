"""Starts a server with each door and without any, in turns, each in a fork of a process that has loaded the rest.

`python -m tests.bench.door_starts FOLDER TURNS` prints for each the milliseconds of a processor until it answers.
"""

import asyncio
import json
import os
import socket
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.app import build_app
from agentsvc.http.server.application import Runner
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.new_data import lay_database
from tests.service import Client

_PROVIDER: Final = {"issuer": "https://login.example.com", "client_id": "agentsvc"}
KINDS: Final[Mapping[str, dict[str, dict[str, Any]]]] = {
    "none": {},
    "sharing": {"sharing": {"enabled": True}},
    "MCP server": {"mcp_server": {"enabled": True}},
    "agent for editors": {"acp_agent": {"enabled": True}},
    "sign-in": {"sign_in": {"enabled": True, "providers": {"company": _PROVIDER}}},
}


async def _start(folder: Path, settings: dict[str, dict[str, Any]]) -> float:
    """Return what a start has taken, from the plugins to the first answer."""
    world = FakeWorld()
    await asyncio.to_thread(lay_database, folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = msgspec.structs.replace(FAST.server, port=port)
        config = msgspec.structs.replace(FAST, extensions=settings, server=server)
        began = time.process_time()
        host = PluginHost.load(kinds=frozenset(), settings=settings)
        host.add("fake", world.plugin(), version="", origin="bench")
        app = await build_app(config, data_dir=folder, plugins=host)
        runner = Runner(
            app,
            grace_seconds=1,
            prefix="",
            limits=server,
            max_of_sandbox=config.limits.connections_per_sandbox,
        )
        try:
            await runner.setup()
            await runner.listen(listener)
            client = Client(f"http://127.0.0.1:{port}", None)
            answer = await client.get("/alive")
            took = 1000 * (time.process_time() - began)
            await client.close()
        finally:
            await runner.cleanup()
    assert answer.status == 200, answer.text  # an HTTP status reads best as a number
    return took


def _in_a_fork(folder: Path, settings: dict[str, dict[str, Any]]) -> float:
    reading, writing = os.pipe()
    if not (child := os.fork()):
        try:
            took = asyncio.run(_start(folder, settings))
            os.write(writing, json.dumps(took).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return float(json.loads(said))


def main(folder: Path, turns: int) -> None:
    """Print what each start has taken; the first of each does not count, since it lays tables."""
    # Threads that wait for work are of no use in a fork, and do no harm there.
    warnings.simplefilter("ignore", DeprecationWarning)
    asyncio.run(_start(folder, {}))
    took: dict[str, list[float]] = {name: [] for name in KINDS}
    for turn in range(turns + 1):
        for name, settings in KINDS.items():
            found = _in_a_fork(folder, settings)
            if turn:
                took[name].append(found)
    sys.stdout.write(f"{json.dumps(took)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
