"""The server is killed at each step of a sandbox's life; its next start makes good what was cut short.

The sandboxes are those of the real process backend, in a plugin that holds still at the step that
is to be cut short.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import LiveClient
from tests.live.installation import Installation, command_line, eventually
from tests.plugins.process.rig import SERVE

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(240),
    pytest.mark.asyncio(loop_scope="session"),
]

PATH = "/api/v1/sandboxes"

PLUGIN = """
import asyncio
import os
import pathlib

from agentsvc_plugins.process.backend import ProcessBackend
from agentsvc.plugin.hookspecs import hookimpl


async def hold(step):
    there = pathlib.Path(os.environ["HOLDS"])
    if (there / f"hold-{step}").exists():
        (there / f"at-{step}").touch()
        await asyncio.sleep(3600)


class HeldBackend(ProcessBackend):
    name = "held"

    async def create(self, order, save):
        async def save_and_hold(handle):
            await save(handle)
            await hold("handle-saved")

        await hold("create-asked")
        handle = await super().create(order, save_and_hold)
        await hold("create-done")
        return handle

    async def inspect(self, handle):
        await hold("look")
        return await super().inspect(handle)

    async def pause(self, handle):
        await hold("pause-asked")
        await super().pause(handle)
        await hold("pause-done")

    async def resume(self, handle):
        await hold("resume-asked")
        handle = await super().resume(handle)
        await hold("resume-done")
        return handle

    async def delete(self, handle):
        await hold("delete-asked")
        await super().delete(handle)
        await hold("delete-done")


@hookimpl
def agentsvc_register_backends():
    return [HeldBackend]
"""

CONFIG = f"""
[plugins]
dirs = ["plugins"]

[sandboxes]
sweep_seconds = 0.2
orphan_grace_seconds = 0.0
default_spec = "web"

[backends.process]
type = "held"

[specs.web]
command = ["{{python}}", "-Ic", {SERVE!r}, "{{port.agent}}"]
ports = [{{ name = "agent" }}]
"""


class Life:
    """An installation whose server is killed at chosen steps."""

    def __init__(self, installation: Installation, holds: Path) -> None:
        self.installation = installation
        self.client: LiveClient = installation.client()
        self._holds = holds

    async def cut_short(self, step: str, act: Callable[[LiveClient], Awaitable[object]]) -> None:
        """Do something, kill the server as soon as it has come to a step, and start it again."""
        (self._holds / f"hold-{step}").touch()

        async def try_it() -> None:
            # Its answer dies with the server.
            with contextlib.suppress(aiohttp.ClientError):
                await act(self.client)

        async with asyncio.TaskGroup() as group:
            group.create_task(try_it())
            await eventually((self._holds / f"at-{step}").exists, f"the server is at {step}")
            await self.installation.kill()
        (self._holds / f"hold-{step}").unlink()
        await self.installation.start()

    async def is_alone(self, sandbox_id: str, status: str) -> None:
        """Wait for a state, and check that there is this sandbox and no trace of another."""
        await self.client.wait_for_sandbox(sandbox_id, status)
        assert [path.name for path in self.installation.sandbox_dirs()] == [sandbox_id]
        assert len(self.installation.temp_dirs()) == 1
        # It may still start processes, or end some, between two looks.
        own = {one.pid for one in self.installation.processes(sandbox_id)}
        everything = {one.pid for one in self.installation.processes()}
        own |= {one.pid for one in self.installation.processes(sandbox_id)}
        assert everything
        assert everything <= own
        assert len(self._workloads()) == 1

    async def is_empty(self) -> None:
        """Wait until nothing of any sandbox is left."""
        await eventually(lambda: not self.installation.leftovers(), "nothing is left")
        assert (await self.client.get(f"{PATH}/search")).json()["items"] == []

    async def make(self) -> str:
        sandbox_id = str((await self.client.post(PATH)).json()["id"])
        await self.client.wait_for_sandbox(sandbox_id, "RUNNING")
        return sandbox_id

    async def only_id(self) -> str:
        [found] = (await self.client.get(f"{PATH}/search")).json()["items"]
        return str(found["id"])

    def _workloads(self) -> list[int]:
        """Return the processes that serve, and not those that hold them."""
        return [
            one.pid
            for one in self.installation.processes()
            if command_line(one.pid).split(b"\0")[1:3] == [b"-Ic", SERVE.encode()]
        ]


@pytest_asyncio.fixture(loop_scope="session")
async def life(tmp_path: Path, model: ScriptedModel) -> AsyncIterator[Life]:
    (tmp_path / "plugins").mkdir(mode=0o700)
    (tmp_path / "plugins" / "held.py").write_text(PLUGIN)
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    holds = tmp_path / "holds"
    holds.mkdir()
    environment = {"AGENTSVC_CONFIG": str(config), "HOLDS": str(holds)}
    installation = Installation(tmp_path, model, environment)
    try:
        await installation.start()
        yield Life(installation, holds)
    finally:
        await installation.close()


async def test_a_server_killed_while_it_makes_a_sandbox_makes_one(life: Life) -> None:
    for step in ("create-asked", "handle-saved", "create-done", "look"):
        await life.cut_short(step, lambda client: client.post(PATH))
        sandbox_id = await life.only_id()
        await life.is_alone(sandbox_id, "RUNNING")
        await life.client.delete(f"{PATH}/{sandbox_id}")
        await life.is_empty()


async def test_a_server_killed_while_it_pauses_or_resumes_a_sandbox_goes_on_with_that(
    life: Life,
) -> None:
    sandbox_id = await life.make()
    for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        for when in ("asked", "done"):
            (other,) = {"pause", "resume"} - {verb}
            await life.client.post(f"{PATH}/{sandbox_id}/{other}")
            await life.cut_short(
                f"{verb}-{when}",
                partial(LiveClient.post, path=f"{PATH}/{sandbox_id}/{verb}"),
            )
            await life.is_alone(sandbox_id, status)


async def test_a_server_killed_at_rest_finds_what_it_had(life: Life) -> None:
    sandbox_id = await life.make()
    await life.installation.restart()
    await life.is_alone(sandbox_id, "RUNNING")
    await life.client.post(f"{PATH}/{sandbox_id}/pause")
    await life.installation.restart()
    await life.is_alone(sandbox_id, "PAUSED")


async def test_a_server_killed_while_it_deletes_a_sandbox_leaves_nothing(life: Life) -> None:
    for step in ("delete-asked", "delete-done"):
        sandbox_id = await life.make()
        await life.cut_short(step, partial(LiveClient.delete, path=f"{PATH}/{sandbox_id}"))
        await life.is_empty()
