"""A process that is the server, as `agentsvc serve` makes it: `python -m tests.bench.server`.

Its sandboxes are a fake agent inside it, or all of them one URL.
"""

import asyncio
import gc
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.app import build_app
from agentsvc.base import logs
from agentsvc.cli.listener import bind
from agentsvc.cli.serve import with_addresses
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.sandboxes import SandboxesConfig, SpecConfig
from agentsvc.config.schema import Config, LimitsConfig, LogFormat, LogLevel
from agentsvc.http.server.application import Runner
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing.backend import FakeWorld
from tests.bench.rig import Running, serve_until_told
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.http.gateway.steps import PORTS
from tests.new_data import make_first_key

_CONFIG: Final = msgspec.structs.replace(
    FAST,
    sandboxes=SandboxesConfig(default_backend="fake"),
    conversations=Config().conversations,
    backends={"fake": {}},
    server=msgspec.structs.replace(FAST.server, max_connections=5000),
    # What is measured is the server, not the limit.
    limits=LimitsConfig(requests_per_minute=0),
)
_SPEC: Final = SpecConfig(id="web", backend="fake", command=("agent",), ports=PORTS)


async def main(data_dir: Path, sandbox_url: str) -> None:
    places = DataDirectory(path=data_dir)
    places.prepare()
    key = await make_first_key(places)
    assert key is not None
    world = FakeWorld()
    plugins = PluginHost.load(disable=["process"])
    plugins.add("fake", world.plugin(), version="", origin="bench")
    config = _CONFIG
    async with AsyncExitStack() as opened:
        opened.callback(world.close)
        if sandbox_url:
            config = msgspec.structs.replace(config, specs={_SPEC.id: _SPEC})
            world.on_create = lambda order: {port.name: sandbox_url for port in order.ports}
        else:
            agent = await opened.enter_async_context(FakeAgent())
            world.on_create = agent.on_create
        listener = opened.enter_context(bind("127.0.0.1", 0))
        config = with_addresses(config, listener)
        app = await build_app(config, data_dir=data_dir, plugins=plugins)
        runner = Runner(app, grace_seconds=2, limits=config.server)
        opened.push_async_callback(runner.cleanup)
        await runner.setup()
        await runner.listen(listener)
        gc.freeze()
        url = config.server.internal_url
        await serve_until_told(Running(pid=os.getpid(), url=url, key=key.reveal()))


if __name__ == "__main__":
    # Every line is made, as in earnest, and read by nobody; problems are told by the exit.
    with Path(os.devnull).open("w") as unread:
        logs.configure(LogLevel.INFO, LogFormat.TEXT, stream=unread)
        asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
