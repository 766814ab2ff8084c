"""Set-ups of environments that leave no room on the disk, on which the server keeps everything, too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE, LiveClient
from tests.live.conftest import FORKS
from tests.live.disks import mounted
from tests.live.installation import Installation, eventually
from tests.live.test_environments import PATH, wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

LONG_SECONDS = 3 * PATIENCE
"""Longer than `wait_for` waits: what is over before has not been ended by its time limit."""
SHORT_SECONDS = 40
MEBIBYTE = 1024**2
REMEDY = "Free some space there, or make the set-up need less, and prepare it again"
OF_SANDBOX = f"The disk of its sandbox is full. {REMEDY}"


@pytest_asyncio.fixture(loop_scope="session")
async def on_disk(
    request: pytest.FixtureRequest, tmp_path: Path, model: ScriptedModel
) -> AsyncIterator[Installation]:
    """Return a server with all that it keeps on a small disk; its `prepare_seconds` are told."""
    limit = {"AGENTSVC_EXTENSIONS__ENVIRONMENTS__PREPARE_SECONDS": str(request.param)}
    with mounted(tmp_path / "data", 64 * MEBIBYTE) as disk:
        own = Installation(tmp_path, model, {**FORKS, **limit}, launcher=disk.launcher)
        await own.start()
        yield own
        await own.close()


async def detail_of(own: Installation, client: LiveClient, script: str) -> str:
    """Return why a set-up has failed, of which nothing is left."""
    order = {"name": "Full", "setup_script": script}
    made = (await client.post(PATH, json=order)).json()
    failed = await wait_for(client, made, "failed")
    await eventually(lambda: not own.processes(), "its sandbox is gone")
    # What was there of its files goes with it, and there is room again.
    ready = await client.post(PATH, json={"name": "Small", "setup_script": "echo small >made"})
    await wait_for(client, ready.json(), "ready")
    for one in (await client.get(PATH)).json()["items"]:
        assert (await client.delete(f"{PATH}/{one['id']}")).status == 200
    detail: str = failed["detail"]
    return detail


@pytest.mark.parametrize("on_disk", [LONG_SECONDS], indirect=True)
async def test_a_set_up_that_fills_the_disk_fails_soon_says_so_and_leaves_nothing(
    on_disk: Installation,
) -> None:
    client = on_disk.client()
    await client.save_settings()
    assert await detail_of(on_disk, client, "head -c 40M /dev/zero >big") == OF_SANDBOX
    fill = "head -c 100M /dev/zero >big"
    ended = "The set-up script ended with exit code 1: the disk of its sandbox is full"
    assert await detail_of(on_disk, client, fill) == f"{ended}. {REMEDY}"
    assert await detail_of(on_disk, client, f"{fill} || true") == OF_SANDBOX


@pytest.mark.parametrize("on_disk", [SHORT_SECONDS], indirect=True)
async def test_a_set_up_that_fills_the_disk_all_the_time_is_ended_and_leaves_nothing(
    on_disk: Installation,
) -> None:
    client = on_disk.client()
    await client.save_settings()
    # The first agent server takes longest, and may take longer than a set-up may here.
    first = (await client.post("/api/v1/sandboxes")).json()
    await client.wait_for_sandbox(first["id"], "RUNNING", time_limit=2 * PATIENCE)
    assert (await client.delete(f"/api/v1/sandboxes/{first['id']}")).status == 200
    # The server itself cannot store what became of it, as long as the files are there.
    endless = "while sleep 0.01; do cat /dev/zero >>big; done 2>/dev/null"
    assert await detail_of(on_disk, client, endless) == OF_SANDBOX
