"""Sandboxes that are resumed while their backend is away or no server runs: the wait counts for no start."""

import pytest

from agentsvc.base.values import monotonic
from tests.sandboxes.test_sandboxes import PATH, start
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

START_SECONDS = 2.0


@pytest.mark.parametrize("how", ["pause", "stop"])
async def test_the_time_in_which_the_backend_is_away_does_not_count_for_a_resume(
    client: Client, service: Service, fake_world: TroubledWorld, how: str
) -> None:
    sandbox_id = await start(client)
    assert (await client.post(f"{PATH}/{sandbox_id}/{how}")).status == 200
    await reconfigure(service, sandboxes={"start_seconds": START_SECONDS})
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    fake_world.unreachable = fake_world.stays_starting = True
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    end = monotonic() + START_SECONDS
    await eventually(lambda: monotonic() > end)
    fake_world.unreachable = False
    await eventually(lambda: fake_world.count("resume") + fake_world.count("restart") > 0)
    inspected = fake_world.count("inspect")
    await eventually(lambda: fake_world.count("inspect") > inspected + 1)
    fake_world.finish_start(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
