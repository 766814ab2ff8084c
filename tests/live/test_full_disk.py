"""Set-ups of environments that leave no room on the disk, on which the server keeps everything, too."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentsvc.base.values import monotonic
from agentsvc.testing.llm import ScriptedModel
from tests.live.conftest import FORKS
from tests.live.disks import mounted
from tests.live.installation import Installation, eventually
from tests.live.test_environments import PATH, wait_for

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

PREPARE_SECONDS = 40
MEBIBYTE = 1024**2
REMEDY = "Free some space there, or have the set-up need less, and prepare it anew"


@pytest_asyncio.fixture(loop_scope="session")
async def on_disk(tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Installation]:
    """Return a server with all that it keeps on a small disk."""
    limit = {"AGENTSVC_EXTENSIONS__ENVIRONMENTS__PREPARE_SECONDS": str(PREPARE_SECONDS)}
    with mounted(tmp_path / "data", 64 * MEBIBYTE) as disk:
        own = Installation(tmp_path, model, {**FORKS, **limit}, launcher=disk.launcher)
        await own.start()
        yield own
        await own.close()


async def test_a_set_up_that_fills_the_disk_fails_soon_says_so_and_leaves_nothing(
    on_disk: Installation,
) -> None:
    client = on_disk.client()
    await client.save_settings()

    async def detail_of(script: str) -> str:
        order = {"name": "Full", "setup_script": script}
        made = (await client.post(PATH, json=order)).json()
        failed = await wait_for(client, made, "failed")
        await eventually(lambda: not on_disk.processes(), "its sandbox is gone")
        # What was there of its files goes with it, and there is room again.
        ready = await client.post(PATH, json={"name": "Small", "setup_script": "echo small >made"})
        await wait_for(client, ready.json(), "ready")
        for one in (await client.get(PATH)).json()["items"]:
            assert (await client.delete(f"{PATH}/{one['id']}")).status == 200
        detail: str = failed["detail"]
        return detail

    fill = "head -c 100M /dev/zero >big"
    # Asked first, so that the rest does not wait for the first agent server.
    too_large = "head -c 40M /dev/zero >big"
    of_sandbox = f"The disk is full on which its sandbox runs. {REMEDY}"
    assert await detail_of(too_large) == of_sandbox
    begun = monotonic()
    ended = "The set-up script ended with exit code 1: the disk is full on which it runs"
    assert await detail_of(fill) == f"{ended}. {REMEDY}"
    assert await detail_of(f"{fill} || true") == of_sandbox
    assert monotonic() - begun < PREPARE_SECONDS
    # The server itself cannot store what became of it, as long as the files are there.
    endless = "while sleep 0.01; do cat /dev/zero >>big; done 2>/dev/null"
    assert await detail_of(endless) == of_sandbox
