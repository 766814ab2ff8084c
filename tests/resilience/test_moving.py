"""A server that moves to another port keeps the ones that sandboxes know, and lets go of them."""

from pathlib import Path

import pytest

from tests.http.v1.streaming import events
from tests.resilience.server import serving


@pytest.mark.timeout(120)
async def test_a_server_that_has_moved_hears_its_sandboxes_and_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        feeder = await server.feeder()
        former = server.url
        await server.installation.stop()
        server.installation.url = ""
        await server.start()
        assert server.url != former
        feeder.sandbox.base_url = former
        assert (await feeder.sandbox.post(feeder.path, json=events(1))).status == 200
        assert await server.installation.stop() == 0
