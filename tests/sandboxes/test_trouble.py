"""Sandboxes while their backend is out of reach, full, slow or broken, and across restarts."""

import contextlib
import logging
import sqlite3
from datetime import timedelta

import pytest

from agentsvc.base.errors import BackendUnavailable, CapacityExceeded, HandleTooNew, OrderRejected
from agentsvc.base.values import Secret, monotonic, new_id, now, to_stored
from agentsvc.config.data_directory import DataDirectory
from agentsvc.config.sandboxes import OnShutdown
from agentsvc.plugin.backend import Order, Phase, StillFetching
from agentsvc.sandboxes import orphan_collector
from agentsvc.testing.backend import FAKE_SPEC
from tests.sandboxes.test_sandboxes import PATH, order, start
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure


def messages(caplog: pytest.LogCaptureFixture, message: str) -> list[logging.LogRecord]:
    return [one for one in caplog.records if one.message == message]


# Creating


async def test_a_sandbox_ordered_while_the_backend_is_away_starts_when_it_is_back(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.unreachable = True
    sandbox_id = await order(client)
    await eventually(lambda: fake_world.count("create") > 0)
    sandbox = await client.wait_for_sandbox(sandbox_id, "STARTING")
    assert fake_world.sandboxes == {}
    fake_world.unreachable = False
    sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox["status_detail"] is None


async def test_a_full_backend_is_asked_again_until_there_is_room(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["create"] = [CapacityExceeded("full"), CapacityExceeded("full")]
    await client.wait_for_sandbox(await order(client), "RUNNING")
    assert fake_world.count("create") == 1  # those that were let through


async def test_a_backend_that_stays_full_ends_in_an_error_at_the_deadline(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"start_seconds": 0.3})
    fake_world.always["create"] = CapacityExceeded("all four places are taken")
    sandbox = await client.wait_for_sandbox(await order(client), "ERROR")
    assert sandbox["status_detail"] == "all four places are taken"


async def test_the_time_in_which_an_image_is_fetched_does_not_count_for_a_start(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"start_seconds": 0.3})
    fake_world.always["create"] = StillFetching("it is being fetched")
    sandbox_id, end = await order(client), monotonic() + 0.9
    await eventually(lambda: monotonic() > end)
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    assert (sandbox["status"], sandbox["status_detail"]) == ("STARTING", "it is being fetched")
    fake_world.always.clear()
    await reconfigure(service, sandboxes={"start_seconds": 60})
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_a_rejected_order_is_an_error_and_not_given_again(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["create"] = [OrderRejected("no such image")]
    sandbox_id = await order(client)
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"] == "no such image"
    await fake_world.sweeps(3)
    assert fake_world.sandboxes == {}


async def test_a_create_that_fails_half_way_is_finished_with_the_same_sandbox(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["created"] = [BackendUnavailable("the line went dead")]
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert list(fake_world.sandboxes) == [sandbox_id]


async def test_what_a_failed_create_left_goes_with_the_sandbox(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["created"] = [OrderRejected("no such network")]
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert list(fake_world.sandboxes) == [sandbox_id]
    await client.delete(f"{PATH}/{sandbox_id}")
    await eventually(lambda: not fake_world.sandboxes)


@pytest.mark.parametrize("moment", ["create", "save", "created"])
async def test_a_restart_in_the_middle_of_a_create_makes_one_sandbox(
    client: Client, service: Service, fake_world: TroubledWorld, moment: str
) -> None:
    fake_world.hold(moment)
    sandbox_id = await order(client)
    await fake_world.waits(moment)
    await service.stop()
    fake_world.held.clear()
    await service.start()
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert list(fake_world.sandboxes) == [sandbox_id]
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]


async def test_the_time_in_which_no_server_ran_does_not_count_for_a_start(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"start_seconds": 0.01})
    fake_world.stays_starting = True
    fake_world.hold("create")
    sandbox_id = await order(client)
    await fake_world.waits("create")
    await service.stop()
    fake_world.held.clear()
    await reconfigure(service, sandboxes={"start_seconds": 60})
    await eventually(lambda: fake_world.count("inspect") > 1)
    fake_world.finish_start(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_a_backend_that_is_full_when_the_server_starts_is_opened_later(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.always["open"] = CapacityExceeded("this machine is full")
    await service.restart()
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    assert sandbox["status"] == "RUNNING"
    fake_world.always.clear()
    await fake_world.sweeps(1)
    await client.wait_for_sandbox(await order(client), "RUNNING")


async def test_a_slow_backend_is_cut_off_and_asked_again(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"call_seconds": 0.2})
    hold = fake_world.hold("create")
    sandbox_id = await order(client)
    await fake_world.waits("create")
    await client.wait_for_sandbox(sandbox_id, "STARTING")
    hold.set()
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_no_answer_in_time_is_the_reason_while_a_create_hangs(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"call_seconds": 0.1, "start_seconds": 0.3})
    fake_world.hold("create")
    sandbox = await client.wait_for_sandbox(await order(client), "ERROR")
    assert sandbox["status_detail"] == "The backend `fake` gave no answer within 0.1 s"


async def test_a_backend_that_breaks_the_contract_fails_the_sandbox_and_is_logged_with_the_trace(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    fake_world.next["create"] = [KeyError("a bug")]
    sandbox = await client.wait_for_sandbox(await order(client), "ERROR")
    assert sandbox["status_detail"] == "The backend `fake` raised an unexpected error"
    [record] = messages(caplog, "sandbox step failed")
    assert record.exc_info


# Looking


async def test_unreachable_never_becomes_gone(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sandbox_id = await start(client)
    fake_world.unreachable = True
    await fake_world.sweeps(4)
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    assert sandbox["status"] == "RUNNING"
    assert len(messages(caplog, "backend cannot be listed, known sandboxes are kept")) == 1
    fake_world.unreachable = False
    await fake_world.sweeps(2)
    assert len(messages(caplog, "backend can be listed again")) == 1
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_a_sandbox_that_cannot_be_looked_at_keeps_its_state_and_says_why(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox_id = await start(client)
    fake_world.always["inspect"] = BackendUnavailable("no route")
    await fake_world.sweeps(4)
    sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox["status_detail"] == "no route"
    assert len(messages(caplog, "backend unavailable, sandbox state kept")) == 1
    del fake_world.always["inspect"]
    await fake_world.sweeps(2)
    sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox["status_detail"] is None


async def test_a_handle_of_a_newer_backend_is_left_alone_and_logged_once(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox_id = await start(client)
    fake_world.always["inspect"] = HandleTooNew("made by a newer version")
    await fake_world.sweeps(4)
    sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox["status_detail"] == "made by a newer version"
    assert len(messages(caplog, "sandbox step failed")) == 1


async def test_the_server_starts_while_the_backend_is_away_and_finds_its_sandboxes_later(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.unreachable = True
    await service.restart()
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    fake_world.end(sandbox_id)
    fake_world.unreachable = False
    await client.wait_for_sandbox(sandbox_id, "ERROR")


async def test_a_backend_with_a_bug_in_scan_stops_neither_the_start_nor_other_sandboxes(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.always["scan"] = ZeroDivisionError("a bug")
    await service.restart()
    await start(client)


# Orphans


async def make_orphan(world: TroubledWorld, instance_id: str) -> str:
    sandbox_id = new_id()

    async def save(_handle: object) -> None:
        return None

    await world.backend(instance_id).create(
        Order(
            sandbox_id=sandbox_id,
            image="",
            command=("agent",),
            env={},
            secret_env={"OH_SESSION_API_KEYS_0": Secret("k" * 32)},
            working_dir="",
            ports=FAKE_SPEC.ports,
            limits=FAKE_SPEC.limits,
            options={},
        ),
        save,
    )
    return sandbox_id


async def test_an_orphan_is_removed_only_after_the_grace_time_and_never_anothers_one(
    service: Service, fake_world: TroubledWorld
) -> None:
    ours = DataDirectory(path=service.data_dir).instance_id.read_text()
    orphan = await make_orphan(fake_world, ours)
    foreign = await make_orphan(fake_world, "another installation")
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 3600})
    await fake_world.sweeps(3)
    assert set(fake_world.sandboxes) == {orphan, foreign}
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0.1})
    await eventually(lambda: orphan not in fake_world.sandboxes)
    await fake_world.sweeps(2)
    assert set(fake_world.sandboxes) == {foreign}


async def test_an_orphan_keeps_its_grace_time_where_the_clock_is_put_forward(
    service: Service, fake_world: TroubledWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 3600})
    ours = DataDirectory(path=service.data_dir).instance_id.read_text()
    orphan = await make_orphan(fake_world, ours)
    await fake_world.sweeps(2)
    monkeypatch.setattr(orphan_collector, "now", lambda: now() + timedelta(days=1))
    await fake_world.sweeps(2)
    assert set(fake_world.sandboxes) == {orphan}


async def test_a_removal_that_was_put_off_while_the_clock_was_wrong_is_tried_once_it_is_right(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.always["delete"] = BackendUnavailable("not now")
    await client.delete(f"{PATH}/{sandbox_id}")
    await service.stop()
    due_at = to_stored(now() + timedelta(days=3653))
    with contextlib.closing(sqlite3.connect(service.data_dir / "agentsvc.db")) as database:
        database.execute("UPDATE sandbox_uses SET removal_due_at = ?", (due_at,))
        database.commit()
    del fake_world.always["delete"]
    await service.start()
    await eventually(lambda: sandbox_id not in fake_world.sandboxes)


async def test_an_orphan_that_cannot_be_removed_is_not_tried_at_each_sweep(
    service: Service, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0.5})
    fake_world.always["delete"] = BackendUnavailable("not now")
    orphan = await make_orphan(
        fake_world, DataDirectory(path=service.data_dir).instance_id.read_text()
    )
    await eventually(lambda: bool(messages(caplog, "orphaned sandbox not removed")))
    tries = len(messages(caplog, "removing orphaned sandbox"))
    await fake_world.sweeps(1)
    assert len(messages(caplog, "removing orphaned sandbox")) == tries
    del fake_world.always["delete"]
    await eventually(lambda: orphan not in fake_world.sandboxes)


async def test_a_sandbox_ordered_during_a_sweep_is_no_orphan(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"orphan_grace_seconds": 0})
    hold = fake_world.hold("scan")
    await fake_world.waits("scan")
    sandbox_id = await start(client)
    hold.set()
    await fake_world.sweeps(2)
    assert list(fake_world.sandboxes) == [sandbox_id]
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_an_orphan_that_goes_by_itself_is_forgotten(
    service: Service, fake_world: TroubledWorld
) -> None:
    orphan = await make_orphan(
        fake_world, DataDirectory(path=service.data_dir).instance_id.read_text()
    )
    await fake_world.sweeps(1)
    fake_world.vanish(orphan)
    await fake_world.sweeps(2)
    assert fake_world.count("delete") == 0


# Shutdown


@pytest.mark.parametrize(
    ("choice", "phase"), [(OnShutdown.LEAVE, Phase.RUNNING), (OnShutdown.PAUSE, Phase.PAUSED)]
)
async def test_at_shutdown_sandboxes_are_left_or_paused(
    client: Client,
    service: Service,
    fake_world: TroubledWorld,
    choice: OnShutdown,
    phase: Phase,
) -> None:
    await reconfigure(service, sandboxes={"on_shutdown": choice})
    sandbox_id = await start(client)
    await service.stop()
    assert fake_world.sandboxes[sandbox_id].phase is phase


async def test_at_shutdown_every_sandbox_is_deleted_where_that_is_configured(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"on_shutdown": OnShutdown.DELETE})
    ids = [await start(client), await start(client)]
    fake_world.end(ids[0])
    await client.wait_for_sandbox(ids[0], "ERROR")
    await service.stop()
    assert fake_world.sandboxes == {}


async def test_a_shutdown_with_a_backend_out_of_reach_ends_in_time(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    settings = {"on_shutdown": OnShutdown.PAUSE, "call_seconds": 0.3}
    await reconfigure(service, sandboxes=settings)
    gone, kept = await start(client), await start(client)
    fake_world.unreachable = True
    await client.delete(f"{PATH}/{gone}")
    await service.stop()
    fake_world.unreachable = False
    await service.start()
    await client.wait_for_sandbox(kept, "PAUSED")
    await eventually(lambda: set(fake_world.sandboxes) == {kept})


async def test_a_backend_that_cannot_pause_does_not_hold_up_the_shutdown(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.capabilities = frozenset()
    await reconfigure(service, sandboxes={"on_shutdown": OnShutdown.PAUSE})
    sandbox_id = await start(client)
    await service.stop()
    assert fake_world.sandboxes[sandbox_id].phase is Phase.RUNNING
