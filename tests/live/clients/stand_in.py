"""An agent server that costs next to nothing, where a test sends requests that mean nothing."""

import asyncio
import os
import sys

from agentsvc.base.values import Secret
from agentsvc.plugin.backend import Order, Port
from tests.fake_agent import FakeAgent

KEY = "OH_SESSION_API_KEYS_0"


async def main(port: int) -> None:
    """Serve the one sandbox whose environment this is, until the process is ended."""
    order = Order(
        sandbox_id="this",
        image="",
        command=None,
        env=dict(os.environ),
        secret_env={KEY: Secret(os.environ[KEY])},
        ports=(Port(name="agent", number=port),),
    )
    async with FakeAgent(port=port) as agent:
        agent.on_create(order)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
