"""Sandboxes that are resumed: while their backend is away or no server runs, and beside `agentsvc prune`."""

from datetime import timedelta

import pytest

from agentsvc.base.values import monotonic, now
from agentsvc.conversations.retention import delete_idle
from agentsvc.http.keys import DATABASE
from agentsvc.plugin.backend import PausedAs
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


async def test_one_that_is_resumed_is_used_for_what_is_pruned_at_the_same_moment(
    client: Client, service: Service
) -> None:
    sandbox_id = await start(client)
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    # What the server remembers of uses is not stored meanwhile.
    await reconfigure(service, sandboxes={"sweep_seconds": 3600.0})
    database = service.app[DATABASE]
    old = "UPDATE sandboxes SET created_at = '2025-01-01T00:00:00.000000Z'"
    await database.write(lambda tx: tx.run(old))
    await database.write(lambda tx: tx.run("UPDATE sandbox_uses SET active_at = NULL"))
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    assert await delete_idle(database, now() - timedelta(hours=1)) == 0


async def test_one_that_was_stopped_since_it_was_last_seen_is_started_again(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    scans = fake_world.count("scan")
    # The next server looks at all of them only once, as it starts.
    await reconfigure(service, sandboxes={"sweep_seconds": 3600.0})
    await eventually(lambda: fake_world.count("scan") > scans)
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    fake_world.sandboxes[sandbox_id].paused_as = PausedAs.STOPPED
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert fake_world.count("restart") == 1
