"""What becomes of a sandbox: started, paused, resumed, failed, vanished, deleted."""

import asyncio
import logging

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import BackendUnavailable, Conflict, NotFound, OrderRejected
from agentsvc.base.values import monotonic
from agentsvc.http.keys import DATABASE, SANDBOXES
from agentsvc.plugin.backend import Capability, Phase
from agentsvc.storage import Database
from agentsvc.testing.backend import FakeBackend
from tests.fake_agent import FakeAgent
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

PATH = "/api/v1/sandboxes"


async def order(client: Client) -> str:
    answer = await client.post(PATH)
    assert answer.status == 200, answer.text
    return str(answer.json()["id"])


async def start(client: Client) -> str:
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    return sandbox_id


async def key_of(client: Client, sandbox_id: str) -> str:
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    return str(sandbox["session_api_key"])


async def can_call(service: Service, key: str) -> bool:
    """Say whether a sandbox's key opens what sandboxes may call."""
    answer = await service.client_with(key).post("/api/v1/webhooks/events/" + "0" * 32, json=[])
    assert answer.status in (401, 404)
    return answer.status == 404


# Failing and vanishing


async def test_a_running_sandbox_shows_what_its_backend_remarks(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    remark = "1 process was ended for want of memory"
    fake_world.sandboxes[sandbox_id].reason = remark

    seen = await client.sandbox(sandbox_id)
    async with asyncio.timeout(20):
        while seen is None or seen["status_detail"] != remark:
            seen = await client.sandbox(sandbox_id)
    assert seen["status"] == "RUNNING"


async def test_a_sandbox_that_failed_shows_error_and_the_reason_within_seconds(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.end(sandbox_id, exit_code=3, reason="the command exited with code 3")
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR", time_limit=10)
    assert sandbox["status_detail"] == "the command exited with code 3"


async def test_a_sandbox_that_vanished_is_missing_and_cannot_be_paused_or_resumed(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.vanish(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "MISSING", time_limit=10)
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 410
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 410


async def test_a_vanished_sandbox_is_not_made_anew(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.vanish(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "MISSING")
    await fake_world.sweeps(3)
    assert fake_world.count("create") == 1
    assert fake_world.sandboxes == {}


async def test_a_failed_sandbox_is_started_again_by_resume(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.end(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    sandbox = await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert sandbox["status_detail"] is None
    assert fake_world.count("create") == 1


async def test_a_failed_sandbox_that_cannot_be_started_again_says_why(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.end(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    fake_world.always["restart"] = Conflict("its files are gone")
    await client.post(f"{PATH}/{sandbox_id}/resume")
    await eventually(lambda: not fake_world.next["restart"])
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"] == "its files are gone"


async def test_a_failed_sandbox_is_tried_again_until_its_deadline_while_the_backend_is_away(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"start_seconds": 1.0})
    sandbox_id = await start(client)
    fake_world.end(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    fake_world.unreachable = True
    await client.post(f"{PATH}/{sandbox_id}/resume")
    assert (await client.wait_for_sandbox(sandbox_id, "STARTING"))["status"] == "STARTING"
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"] == "The fake world is out of reach"


@pytest.mark.parametrize("dropped", [Capability.RESTART, Capability.PAUSE])
async def test_what_a_backend_cannot_do_is_refused(
    client: Client, service: Service, fake_world: TroubledWorld, dropped: Capability
) -> None:
    fake_world.capabilities = FakeBackend.capabilities - {dropped}
    await service.restart()
    sandbox_id = await start(client)
    if dropped is Capability.PAUSE:
        answer = await client.post(f"{PATH}/{sandbox_id}/pause")
        assert answer.status == 409
        assert answer.json()["code"] == "unsupported"
    else:
        fake_world.end(sandbox_id, reason="it ran out of memory")
        await client.wait_for_sandbox(sandbox_id, "ERROR")
        answer = await client.post(f"{PATH}/{sandbox_id}/resume")
        assert answer.status == 503
        assert "it ran out of memory" in answer.json()["detail"]


async def test_a_sandbox_that_was_never_made_cannot_be_resumed(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.always["create"] = OrderRejected("no such image")
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    answer = await client.post(f"{PATH}/{sandbox_id}/resume")
    assert answer.status == 503
    assert "no such image" in answer.json()["detail"]


async def test_a_sandbox_that_stays_starting_fails_at_its_deadline_with_its_last_output(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    await reconfigure(service, sandboxes={"start_seconds": 0.5})
    sandbox_id = await order(client)
    await eventually(lambda: sandbox_id in fake_world.sandboxes)
    fake_world.write_log(sandbox_id, "waiting for a port")
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"].startswith("its ports did not respond within 0.5 s")
    assert "`sandboxes.start_seconds`" in sandbox["status_detail"]
    assert sandbox["status_detail"].endswith("waiting for a port")


async def test_a_sandbox_that_failed_at_its_deadline_is_stopped_and_can_be_started_again(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    await reconfigure(service, sandboxes={"start_seconds": 0.5})
    sandbox_id = await order(client)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert fake_world.sandboxes[sandbox_id].phase is Phase.PAUSED
    await fake_world.sweeps(2)
    assert fake_world.count("resume") == 0
    fake_world.stays_starting = False
    assert (await client.post(f"{PATH}/{sandbox_id}/resume")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


async def test_a_failed_sandbox_that_cannot_be_stopped_has_failed_all_the_same(
    client: Client,
    service: Service,
    fake_world: TroubledWorld,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fake_world.stays_starting = True
    fake_world.always["pause"] = BackendUnavailable("not now")
    await reconfigure(service, sandboxes={"start_seconds": 0.3})
    await client.wait_for_sandbox(await order(client), "ERROR")
    assert "failed sandbox still running at its backend" in caplog.messages


async def test_without_its_last_output_a_sandbox_fails_at_its_deadline_all_the_same(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    fake_world.always["logs"] = BackendUnavailable("not now")
    await reconfigure(service, sandboxes={"start_seconds": 0.3})
    sandbox = await client.wait_for_sandbox(await order(client), "ERROR")
    assert sandbox["status_detail"] == (
        "its ports did not respond within 0.3 s; raise `sandboxes.start_seconds` if it needs longer"
    )


async def test_a_sandbox_that_ran_and_does_not_answer_has_the_time_of_a_start_to_answer_again(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    """On a busy machine it may have no time for an answer."""
    await reconfigure(service, sandboxes={"start_seconds": 2})
    sandbox_id = await start(client)
    began = monotonic()
    await eventually(lambda: monotonic() > began + 2)
    await reconfigure(service, sandboxes={"start_seconds": 60})
    fake_world.sandboxes[sandbox_id].phase = Phase.STARTING
    await client.wait_for_sandbox(sandbox_id, "STARTING")
    await fake_world.sweeps(1)
    fake_world.finish_start(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert fake_world.count("pause") == 0


async def test_a_starting_sandbox_that_gets_ready_runs(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    sandbox_id = await order(client)
    await eventually(lambda: fake_world.count("inspect") >= 3)
    fake_world.finish_start(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "RUNNING")


# Pause and resume


async def test_pause_and_resume_are_idempotent(client: Client, fake_world: TroubledWorld) -> None:
    sandbox_id = await start(client)
    for action, status in [("pause", "PAUSED")] * 2 + [("resume", "RUNNING")] * 2:
        assert (await client.post(f"{PATH}/{sandbox_id}/{action}")).status == 200
        await client.wait_for_sandbox(sandbox_id, status)
    assert fake_world.count("pause") == 1
    assert fake_world.count("resume") == 1


async def test_a_sandbox_that_is_paused_while_it_starts_is_paused_once_it_runs(
    client: Client, fake_world: TroubledWorld
) -> None:
    go_on = fake_world.hold("create")
    sandbox_id = await order(client)
    await fake_world.waits("create")
    go_on.set()
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "PAUSED")


async def test_a_paused_sandbox_stays_paused_after_a_restart(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    await client.post(f"{PATH}/{sandbox_id}/pause")
    await service.restart()
    await fake_world.sweeps(2)
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert fake_world.sandboxes[sandbox_id].phase is Phase.PAUSED


async def test_a_pause_is_kept_while_the_backend_is_away(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.unreachable = True
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    fake_world.unreachable = False
    await client.wait_for_sandbox(sandbox_id, "PAUSED")


async def test_a_failed_sandbox_cannot_be_paused(client: Client, fake_world: TroubledWorld) -> None:
    sandbox_id = await start(client)
    fake_world.end(sandbox_id, reason="it fell over")
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    answer = await client.post(f"{PATH}/{sandbox_id}/pause")
    assert answer.status == 503
    assert "it fell over" in answer.json()["detail"]


async def test_a_sandbox_that_ended_unseen_shows_its_failure_when_it_is_paused(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"sweep_seconds": 600})
    sandbox_id = await start(client)
    fake_world.end(sandbox_id, reason="it fell over")
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"] == "it fell over"


async def test_a_paused_sandbox_that_vanished_is_missing_when_it_is_resumed(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"sweep_seconds": 600})
    sandbox_id = await start(client)
    await client.post(f"{PATH}/{sandbox_id}/pause")
    fake_world.vanish(sandbox_id)
    await client.post(f"{PATH}/{sandbox_id}/resume")
    await client.wait_for_sandbox(sandbox_id, "MISSING")


async def test_a_pause_that_a_backend_refuses_leaves_the_sandbox_running_with_the_reason(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.always["pause"] = Conflict("it is being moved")
    assert (await client.post(f"{PATH}/{sandbox_id}/pause")).status == 200
    sandbox = await client.sandbox(sandbox_id)
    assert sandbox is not None
    assert (sandbox["status"], sandbox["status_detail"]) == ("RUNNING", "it is being moved")
    del fake_world.always["pause"]
    await client.wait_for_sandbox(sandbox_id, "PAUSED")


async def test_a_resume_that_fails_for_good_is_an_error(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    await client.post(f"{PATH}/{sandbox_id}/pause")
    fake_world.always["resume"] = OrderRejected("it was moved to another machine")
    await client.post(f"{PATH}/{sandbox_id}/resume")
    sandbox = await client.wait_for_sandbox(sandbox_id, "ERROR")
    assert sandbox["status_detail"] == "it was moved to another machine"


# Delete


@pytest.mark.parametrize("phase", ["no order", "starting", "running", "paused", "failed", "gone"])
async def test_a_sandbox_is_deleted_in_every_phase(
    client: Client, fake_world: TroubledWorld, phase: str
) -> None:
    if phase == "no order":
        fake_world.always["create"] = BackendUnavailable("not now")
    fake_world.stays_starting = phase == "starting"
    sandbox_id = await order(client)
    if phase not in ("no order", "starting"):
        await client.wait_for_sandbox(sandbox_id, "RUNNING")
    match phase:
        case "no order" | "starting":
            method = "scan" if phase == "no order" else "inspect"
            await eventually(lambda: fake_world.count(method) > 0)
        case "paused":
            await client.post(f"{PATH}/{sandbox_id}/pause")
        case "failed":
            fake_world.end(sandbox_id)
            await client.wait_for_sandbox(sandbox_id, "ERROR")
        case "gone":
            fake_world.vanish(sandbox_id)
            await client.wait_for_sandbox(sandbox_id, "MISSING")
        case _:
            pass
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 200
    assert await client.sandbox(sandbox_id) is None
    await eventually(lambda: not fake_world.sandboxes)
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 404


async def test_what_a_backend_made_without_a_saved_handle_is_deleted_too(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    await reconfigure(service, sandboxes={"sweep_seconds": 600})
    fake_world.always["save"] = BackendUnavailable("half-way")
    sandbox_id = await order(client)
    await eventually(lambda: sandbox_id in fake_world.sandboxes)
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 200
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_sandbox_being_deleted_is_seen_by_nobody_and_changed_by_nothing(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.unreachable = True
    assert (await client.delete(f"{PATH}/{sandbox_id}")).status == 200
    assert await client.sandbox(sandbox_id) is None
    assert (await client.get(f"{PATH}/search")).json()["items"] == []
    for answer in (
        await client.post(f"{PATH}/{sandbox_id}/resume"),
        await client.post(f"{PATH}/{sandbox_id}/pause"),
        await client.delete(f"{PATH}/{sandbox_id}"),
    ):
        assert answer.status == 404
    fake_world.unreachable = False
    await eventually(lambda: not fake_world.sandboxes)


async def test_of_two_deletes_at_once_both_are_fine_and_one_happens(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    answers = await asyncio.gather(*(client.delete(f"{PATH}/{sandbox_id}") for _ in range(3)))
    assert {answer.status for answer in answers} <= {200, 404}
    assert fake_world.count("delete") == 1


async def test_a_sandbox_that_is_paused_and_deleted_at_once_is_deleted(
    client: Client, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    deleted, paused = await asyncio.gather(
        client.delete(f"{PATH}/{sandbox_id}"), client.post(f"{PATH}/{sandbox_id}/pause")
    )
    assert deleted.status == 200
    assert paused.status in (200, 404, 409)
    assert fake_world.sandboxes == {}


async def test_a_delete_goes_on_after_a_restart(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.unreachable = True
    await client.delete(f"{PATH}/{sandbox_id}")
    await service.restart()
    assert sandbox_id in fake_world.sandboxes
    fake_world.unreachable = False
    await eventually(lambda: not fake_world.sandboxes)


async def test_a_delete_that_fails_is_tried_again_and_logged_once(
    client: Client, fake_world: TroubledWorld, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox_id = await start(client)
    fake_world.always["delete"] = KeyError("a bug of the backend")
    await client.delete(f"{PATH}/{sandbox_id}")
    await fake_world.sweeps(4)
    text = "sandbox not removed, will be retried"
    failures = [
        one for one in caplog.records if one.message == text and one.levelno > logging.DEBUG
    ]
    assert len(failures) == 1
    assert failures[0].levelno == logging.ERROR
    del fake_world.always["delete"]
    await eventually(lambda: not fake_world.sandboxes)


# Keys and users


@pytest.mark.parametrize("state", ["paused", "failed", "deleted"])
async def test_a_sandboxs_key_opens_nothing_unless_it_runs(
    client: Client, service: Service, fake_world: TroubledWorld, state: str
) -> None:
    sandbox_id = await start(client)
    key = await key_of(client, sandbox_id)
    assert await can_call(service, key)
    match state:
        case "paused":
            await client.post(f"{PATH}/{sandbox_id}/pause")
        case "failed":
            fake_world.end(sandbox_id)
            await client.wait_for_sandbox(sandbox_id, "ERROR")
        case _:
            fake_world.unreachable = True
            await client.delete(f"{PATH}/{sandbox_id}")
    assert not await can_call(service, key)


async def test_a_key_opens_nothing_once_another_process_has_given_its_sandbox_up(
    client: Client, service: Service
) -> None:
    sandbox_id = await start(client)
    key = await key_of(client, sandbox_id)
    assert await can_call(service, key)
    # As `agentsvc prune` does beside a server that runs.
    beside = await Database.open(service.app[DATABASE].path)
    sql = "UPDATE sandboxes SET target = 'deleted' WHERE id = :id"
    await beside.write(lambda tx: tx.run(sql, {"id": sandbox_id}))
    await beside.close()
    assert not await can_call(service, key)


async def test_a_sandbox_may_call_before_it_was_seen_running(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    sandbox_id = await order(client)
    assert await can_call(service, await key_of(client, sandbox_id))


async def test_a_running_sandbox_may_call_while_its_pause_is_held_up(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    fake_world.unreachable = True
    await client.post(f"{PATH}/{sandbox_id}/pause")
    assert await can_call(service, await key_of(client, sandbox_id))


async def test_nobody_sees_or_changes_another_users_sandbox(
    client: Client, service: Service, fake_world: TroubledWorld
) -> None:
    sandbox_id = await start(client)
    other = await service.make_client("eve", Role.MEMBER)
    assert await other.sandbox(sandbox_id) is None
    assert (await other.get(f"{PATH}/search")).json()["items"] == []
    for path in (f"{PATH}/{sandbox_id}/pause", f"{PATH}/{sandbox_id}/resume"):
        assert (await other.post(path)).status == 404
    assert (await other.delete(f"{PATH}/{sandbox_id}")).status == 404
    await client.wait_for_sandbox(sandbox_id, "RUNNING")
    assert fake_world.count("delete") == fake_world.count("pause") == 0


async def test_session_keys_are_in_no_log_line(
    client: Client,
    fake_world: TroubledWorld,
    fake_agent: FakeAgent,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sandbox_id = await start(client)
    key = fake_agent.sandboxes[sandbox_id].key
    fake_world.end(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "ERROR")
    await client.delete(f"{PATH}/{sandbox_id}")
    assert caplog.records
    assert not [one for one in caplog.records if key in f"{one.getMessage()} {vars(one)}"]


async def test_an_unknown_spec_and_an_unknown_sandbox_are_not_found(service: Service) -> None:
    sandboxes = service.app[SANDBOXES]
    with pytest.raises(NotFound, match="Sandbox spec not found: other"):
        sandboxes.get_spec("other")
    assert sandboxes.get_spec(None).id == "fake"
    with pytest.raises(NotFound):
        await sandboxes.get("nobody", "0" * 32)
