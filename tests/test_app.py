"""A server as a whole: what it needs to start, what it makes, and whom it tells."""

from pathlib import Path

import pytest
from aiohttp import web

from agentsvc.app import build_app
from agentsvc.base.errors import StartFailed
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.config.schema import Config
from agentsvc.http.keys import SANDBOXES
from agentsvc.plugin.hookspecs import Event, hookimpl
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually


async def set_up(data_dir: Path, config: Config, host: PluginHost | None = None) -> web.AppRunner:
    runner = web.AppRunner(await build_app(config, data_dir=data_dir, plugins=host))
    try:
        await runner.setup()
    except StartFailed:
        await runner.cleanup()
        raise
    return runner


async def test_an_installation_keeps_its_id_and_its_keys(service: Service) -> None:
    places = DataDirectory(path=service.data_dir)
    before = (places.instance_id.read_text(), places.master_key.read_text())
    await service.restart()
    assert (places.instance_id.read_text(), places.master_key.read_text()) == before
    assert len(before[0]) == 32


async def test_an_id_that_was_not_written_to_its_end_is_replaced(service: Service) -> None:
    places = DataDirectory(path=service.data_dir)
    await service.stop()
    places.instance_id.write_text("")
    await service.start()
    assert len(places.instance_id.read_text()) == 32
    assert not places.instance_id.with_name("instance-id.new").exists()


async def test_without_its_master_key_an_installation_does_not_start(service: Service) -> None:
    await service.stop()
    DataDirectory(path=service.data_dir).master_key.unlink()
    with pytest.raises(StartFailed, match=r"the master key .* is missing") as caught:
        await set_up(service.data_dir, Config())
    assert "put the key back" in caught.value.hint


async def test_without_named_plugins_those_that_ship_with_the_server_are_loaded(
    tmp_path: Path,
) -> None:
    runner = await set_up(tmp_path / "data", Config())
    try:
        specs = runner.app[SANDBOXES].specs()
        assert [spec.backend for spec in specs][:1] == ["process"]
    finally:
        await runner.cleanup()


async def test_a_default_backend_that_nobody_offers_stops_the_start(tmp_path: Path) -> None:
    sandboxes = SandboxesConfig(default_backend="nowhere")
    with pytest.raises(StartFailed, match="default_backend is `nowhere`"):
        await set_up(tmp_path / "data", Config(sandboxes=sandboxes))


async def test_plugins_hear_of_each_change_of_a_sandbox(
    tmp_path: Path, fake_world: TroubledWorld
) -> None:
    heard: list[Event] = []

    class Listener:
        @hookimpl
        def agentsvc_on_event(self, event: Event) -> None:
            heard.append(event)

    service = Service(
        tmp_path / "data", FAST, lambda: load_plugins(fake=fake_world.plugin(), listener=Listener())
    )
    await service.start()
    try:
        client: Client = await service.make_client()
        sandbox_id = (await client.post("/api/v1/sandboxes")).json()["id"]
        await client.wait_for_sandbox(sandbox_id, "RUNNING")
        await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
        await eventually(lambda: any(one.data["status"] == "DELETED" for one in heard))
    finally:
        await service.close()
    assert {one.kind for one in heard} == {"sandbox.changed"}
    assert {one.subject_id for one in heard} == {sandbox_id}
    statuses = [one.data["status"] for one in heard]
    assert statuses[0] == "STARTING"
    assert "RUNNING" in statuses
    assert statuses[-1] == "DELETED"
    assert all(one.data["backend"] == "fake" for one in heard)
