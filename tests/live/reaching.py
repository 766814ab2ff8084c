"""What a sandbox reaches from its network."""

import asyncio

from agentsvc.plugin.backend import Network
from tests.live.containers import Engine
from tests.live.test_docker_backend import REACH, address_of, host_service, python, rig_on


async def reached(engine: Engine, network: Network) -> list[str]:
    """Say what a sandbox reaches: its server, others here by two addresses, and a neighbour."""
    async with rig_on(engine) as rig, host_service() as server, host_service() as other:
        env = {"OH_WEBHOOKS_0_BASE_URL": f"http://agentsvc.internal:{server}/api/v1/webhooks"}
        order, neighbour = rig.order(network=network, env=env), rig.order(network=network, env=env)
        (handle, report), _ = await asyncio.gather(rig.run(order), rig.run(neighbour))
        assert await rig.ask(report, "GET", "/name") == order.sandbox_id.encode()
        assert "callbacks" not in report.facts
        targets = [
            f"agentsvc.internal:{server}",
            f"agentsvc.internal:{other}",
            f"{engine.address}:{server}",
            f"{engine.address}:{other}",
            f"{await address_of(engine, neighbour)}:8100",
        ]
        return await python(rig, handle, REACH, *targets)
