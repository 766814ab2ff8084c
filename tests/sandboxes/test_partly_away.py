"""Sandboxes of a backend with several hosts, some of which are away: nothing follows from absence."""

import logging

import pytest

from agentsvc.base.errors import BackendUnavailable
from agentsvc.base.values import now
from agentsvc.config.data_directory import DataDirectory
from agentsvc.plugin.backend import Found, Handle, PartlyScanned
from tests.sandboxes.test_sandboxes import PATH, order, start
from tests.sandboxes.test_trouble import make_orphan, messages
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

AWAY = "The host `b` cannot be reached"


def found(*sandbox_ids: str) -> PartlyScanned:
    """Return what a scan raises that finds these, and whatever else there is not."""
    handles = [Handle(sandbox_id=one, version=1, data={}) for one in sandbox_ids]
    return PartlyScanned(AWAY, found=[Found(handle=one, created_at=now()) for one in handles])


async def test_what_is_at_the_other_hosts_is_looked_at_and_nothing_counts_as_gone(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = await start(client), await start(client)
    fake_world.always["scan"] = found(first)
    fake_world.end(first, reason="the command exited")
    await client.wait_for_sandbox(first, "ERROR")
    await fake_world.sweeps(2)
    await client.wait_for_sandbox(second, "RUNNING")
    assert set(fake_world.sandboxes) == {first, second}
    [said] = messages(caplog, "backend cannot be listed, known sandboxes are kept")
    assert AWAY in said.__dict__["reason"]
    del fake_world.always["scan"]
    await eventually(lambda: bool(messages(caplog, "backend can be listed again")))


async def test_an_orphan_at_another_host_is_removed_and_one_out_of_sight_is_not_forgotten(
    service: Service, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0.5})
    fake_world.always["delete"] = BackendUnavailable("not now")
    ours = DataDirectory(path=service.data_dir).instance_id.read_text()
    far, near = await make_orphan(fake_world, ours), await make_orphan(fake_world, ours)
    await eventually(lambda: len(messages(caplog, "orphaned sandbox not removed")) > 1)
    fake_world.always["scan"] = found(near)
    del fake_world.always["delete"]
    await eventually(lambda: near not in fake_world.sandboxes)
    await fake_world.sweeps(2)
    assert set(fake_world.sandboxes) == {far}
    del fake_world.always["scan"]
    await eventually(lambda: not fake_world.sandboxes)


async def test_what_can_be_no_id_of_a_sandbox_is_no_orphan(
    service: Service, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0})
    fake_world.always["scan"] = found("../../../master.key", "/etc/passwd", "..", "", "a" * 32)
    await fake_world.sweeps(2)
    removed = messages(caplog, "removing orphaned sandbox")
    assert {one.__dict__["sandbox_id"] for one in removed} == {"a" * 32}


@pytest.mark.parametrize("is_seen", [True, False])
async def test_one_without_a_handle_is_deleted_once_it_is_known_where_it_is(
    client: Client, service: Service, fake_world: TroubledWorld, is_seen: bool
) -> None:
    await reconfigure(service, sandboxes={"sweep_seconds": 600})
    fake_world.always["save"] = BackendUnavailable("half-way")
    sandbox_id = await order(client)
    await eventually(lambda: sandbox_id in fake_world.sandboxes)
    fake_world.always["scan"] = found(*([sandbox_id] if is_seen else []))
    scans = fake_world.count("scan")
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 200
    if not is_seen:
        await eventually(lambda: fake_world.count("scan") > scans + 1)
        assert set(fake_world.sandboxes) == {sandbox_id}
        del fake_world.always["scan"]
    await eventually(lambda: not fake_world.sandboxes)
