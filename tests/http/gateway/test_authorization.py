"""Whose key opens which sandbox, and what is said where it cannot be used now."""

import asyncio
import base64
import logging
from collections.abc import Mapping

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import Box
from tests.http.gateway.upstream import Upstream
from tests.service import Answer, Service

KEY = "X-Session-API-Key"


async def _ask(
    box: Box, tail: str = "/x", port: str = "worker_1", headers: Mapping[str, str] | None = None
) -> Answer:
    """Ask without a key but those in the headers or the tail."""
    nobody = box.service.client_with(None)
    return await nobody.get(box.path(tail, port), headers=dict(headers or {}))


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
@pytest.mark.parametrize("whose", ["owner", "sandbox"])
@pytest.mark.parametrize("where", [KEY, "Authorization", "X-Access-Token"])
async def test_either_key_opens_every_port_and_does_not_get_there(
    port: str, whose: str, where: str, box: Box
) -> None:
    key = str(box.owner.key) if whose == "owner" else box.key
    value = f"Bearer {key}" if where == "Authorization" else key
    answer = await _ask(box, "/x?a=1&b=2", port, {where: value})
    assert answer.status == 200, answer.text
    seen = box.upstream.seen[-1]
    assert seen.raw_path == "/x?a=1&b=2"
    assert seen.one(KEY) == (box.key if port == "agent" else None)
    others = [value for name, value in seen.headers if name != KEY]
    assert not any(key in value for value in others)


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_the_query_opens_a_port_with_the_sandboxs_key_only(port: str, box: Box) -> None:
    answer = await _ask(box, f"/x?a=1&session_api_key={box.key}&b=2", port)
    assert answer.status == 200, answer.text
    seen = box.upstream.seen[-1]
    assert seen.raw_path == "/x?a=1&b=2"
    assert seen.one(KEY) == (box.key if port == "agent" else None)
    # A page of the sandbox can read where it is, and would learn the user's key.
    answer = await _ask(box, f"/x?session_api_key={box.owner.key}", port)
    assert answer.status == 401
    with_both = f"/x?session_api_key={box.owner.key}&session_api_key={box.key}"
    assert (await _ask(box, with_both, port)).status == 200
    assert box.upstream.seen[-1].raw_path == "/x"


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_without_a_good_key_nothing_opens(port: str, box: Box) -> None:
    wrong = "asvc_" + "x" * 43
    for headers in ({}, {KEY: "no-such-key"}, {KEY: wrong}, {"Authorization": f"Bearer {wrong}"}):
        answer = await _ask(box, "/x", port, headers)
        assert (answer.status, answer.json()["code"]) == (401, "not_authenticated")
    answer = await _ask(box, "/x?session_api_key=no-such-key", port)
    assert answer.status == 401
    assert box.upstream.seen == []


@pytest.mark.parametrize("path", ["/health", "/alive", "/ready"])
async def test_a_health_check_of_an_agent_server_needs_no_key(path: str, box: Box) -> None:
    nobody = box.service.client_with(None)
    assert (await _ask(box, path, "agent")).status == 200
    assert box.upstream.seen[-1].raw_path == path
    assert (await nobody.request("HEAD", box.path(path, "agent"))).status == 200
    assert (await nobody.post(box.path(path, "agent"))).status == 401
    assert (await _ask(box, f"{path}/x", "agent")).status == 401
    assert (await _ask(box, path)).status == 401
    assert (await _ask(box, path, "agent", {KEY: "wrong"})).status == 401
    assert (await nobody.get(f"/sandboxes/{'0' * 32}/agent{path}")).status == 401
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    assert (await _ask(box, path, "agent")).status == 409
    await box.owner.delete(f"/api/v1/sandboxes/{box.id}")
    assert (await _ask(box, path, "agent")).status == 401


async def test_a_foreign_sandbox_is_not_there(box: Box) -> None:
    stranger = await box.service.make_client("stranger", Role.MEMBER)
    admin = await box.service.make_client("boss", Role.ADMIN)
    other = await Box.start(box.service, box.upstream, stranger)
    for client in (stranger, admin, box.service.client_with(other.key)):
        answer = await client.get(box.path("/x"))
        assert (answer.status, answer.json()["code"]) == (404, "not_found")
    assert box.upstream.seen == []


async def test_an_unknown_sandbox_and_an_unknown_port_are_not_there(box: Box) -> None:
    for path in (f"/sandboxes/{'0' * 32}/agent/x", box.path("/x", "no_such_port"), "/sandboxes"):
        answer = await box.owner.get(path)
        assert (answer.status, answer.json()["code"]) == (404, "not_found")


async def test_keys_of_both_kinds_in_one_request_both_stay_here(box: Box) -> None:
    headers = {KEY: box.key, "Authorization": f"Bearer {box.owner.key}"}
    answer = await _ask(box, "/x", headers=headers)
    assert answer.status == 200
    assert box.upstream.seen[-1].one("Authorization") is None


async def test_a_revoked_key_next_to_a_good_one_stays_here(box: Box) -> None:
    revoked = "asvc_" + "r" * 43
    as_user = base64.b64encode(f"{revoked}:".encode()).decode()
    for name, value in (
        *((name, revoked) for name in ("X-Access-Token", "X-API-Key", "X-Service-API-Key")),
        *(("Authorization", value) for value in (revoked, f"Token\t{revoked}", f"Basic {as_user}")),
    ):
        headers = {KEY: box.key, name: value}
        assert (await _ask(box, "/x", headers=headers)).status == 200
        assert box.upstream.seen[-1].one(name) is None, (name, value)


async def test_an_applications_own_credentials_pass(box: Box) -> None:
    for value in ("Bearer of-the-app", "Basic dXNlcjpwYXNz", "Basic ?", "Token t", "bare"):
        tokens = dict.fromkeys(("X-Access-Token", "X-API-Key", "X-Service-API-Key"), "app")
        headers = {KEY: box.key, "Authorization": value, **tokens}
        assert (await _ask(box, "/x", headers=headers)).status == 200
        assert box.upstream.seen[-1].one("Authorization") == value
        assert all(box.upstream.seen[-1].one(name) == "app" for name in tokens)


async def test_a_password_that_is_a_key_opens_nothing_and_stays_here(box: Box) -> None:
    password = base64.b64encode(f"me:{box.owner.key}".encode()).decode()
    headers = {"Authorization": f"Basic {password}"}
    assert (await _ask(box, "/x", headers=headers)).status == 401
    assert (await _ask(box, "/x", headers={KEY: box.key, **headers})).status == 200
    assert box.upstream.seen[-1].one("Authorization") is None


async def test_the_editors_own_token_opens_the_editor_only(box: Box) -> None:
    assert (await _ask(box, f"/?tkn={box.key}&folder=x", "vscode")).status == 200
    # The editor checks it too.
    assert box.upstream.seen[-1].raw_path == f"/?tkn={box.key}&folder=x"
    cookie = {"Cookie": f"vscode-tkn={box.key}; other=1"}
    assert (await _ask(box, "/static", "vscode", cookie)).status == 200
    assert box.upstream.seen[-1].one("Cookie") == cookie["Cookie"]
    for port in ("agent", "worker_1"):
        assert (await _ask(box, f"/?tkn={box.key}", port)).status == 401
        assert (await _ask(box, "/", port, cookie)).status == 401


async def test_a_users_key_in_the_editors_place_stays_here(box: Box) -> None:
    cookie = {"Cookie": f"vscode-tkn={box.owner.key}; other=1"}
    assert (await _ask(box, f"/?tkn={box.owner.key}&a=1", "vscode", cookie)).status == 401
    cookie[KEY] = box.key
    assert (await _ask(box, f"/?tkn={box.owner.key}&a=1", "vscode", cookie)).status == 200
    seen = box.upstream.seen[-1]
    assert (seen.raw_path, seen.one("Cookie")) == ("/?a=1", "other=1")


async def test_a_key_in_a_query_is_not_logged(box: Box, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await _ask(box, f"/x?session_api_key={box.key}")
    await _ask(box, f"/x?session_api_key={box.owner.key}")
    await _ask(box, f"/?tkn={box.key}", "vscode")
    await box.upstream.stop()
    assert (await _ask(box, f"/x?session_api_key={box.key}&y=1")).status == 502
    for record in caplog.records:
        if record.name.startswith("agentsvc"):
            text = f"{record.getMessage()} {vars(record)}"
            assert box.key not in text
            assert str(box.owner.key) not in text


# When a sandbox cannot be used


async def test_a_paused_sandbox_is_a_conflict_with_the_remedy(box: Box) -> None:
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    for answer in (await box.get("/x"), await _ask(box, "/x", headers={KEY: box.key})):
        assert (answer.status, answer.json()["code"]) == (409, "conflict")
        assert f"POST /api/v1/sandboxes/{box.id}/resume" in answer.json()["detail"]
    assert (await box.owner.post(f"/api/v1/sandboxes/{box.id}/resume")).status == 200
    await box.owner.wait_for_sandbox(box.id, "RUNNING")
    assert (await box.get("/x")).status == 200


async def test_a_sandbox_that_is_gone_is_gone(box: Box, world: FakeWorld) -> None:
    world.vanish(box.id)
    await box.owner.wait_for_sandbox(box.id, "MISSING")
    for answer in (await box.get("/x"), await _ask(box, "/x", headers={KEY: box.key})):
        assert (answer.status, answer.json()["code"]) == (410, "gone")


async def test_a_deleted_sandbox_is_not_there(box: Box) -> None:
    assert (await box.owner.delete(f"/api/v1/sandboxes/{box.id}")).status == 200
    assert (await box.get("/x")).status == 404
    assert (await _ask(box, "/x", headers={KEY: box.key})).status == 401


async def test_a_failed_sandbox_is_said_to_have_failed(box: Box, world: FakeWorld) -> None:
    world.end(box.id, reason="out of memory")
    await box.owner.wait_for_sandbox(box.id, "ERROR")
    answer = await box.get("/x")
    assert (answer.status, answer.json()["code"]) == (503, "sandbox_not_usable")
    remedy = f"Start it again with POST /api/v1/sandboxes/{box.id}/resume."
    assert answer.json()["detail"] == f"The sandbox has failed. {remedy} The cause: out of memory"
    answer = await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    assert (answer.status, remedy in answer.json()["detail"]) == (503, True)


async def test_a_sandbox_that_starts_is_waited_for(
    gate: Service, world: FakeWorld, upstream: Upstream
) -> None:
    world.stays_starting = True
    client = await gate.make_client()
    sandbox_id = (await client.post("/api/v1/sandboxes?sandbox_spec_id=web")).json()["id"]
    await client.wait_for_sandbox(sandbox_id, "STARTING")

    def finish() -> None:
        if sandbox_id in world.sandboxes:
            world.finish_start(sandbox_id)

    asyncio.get_running_loop().call_later(0.5, finish)
    answer = await client.get(f"/sandboxes/{sandbox_id}/worker_1/x")
    assert answer.status == 200, answer.text
    assert len(upstream.seen) == 1


async def test_a_sandbox_that_starts_for_too_long_is_starting(
    start_gate: StartGate, world: FakeWorld
) -> None:
    world.stays_starting = True
    client = await (await start_gate(GatewayConfig(start_seconds=0.2))).make_client()
    sandbox_id = (await client.post("/api/v1/sandboxes?sandbox_spec_id=web")).json()["id"]
    answer = await client.get(f"/sandboxes/{sandbox_id}/worker_1/x")
    assert (answer.status, answer.json()["code"]) == (503, "sandbox_starting")
    assert answer.headers["Retry-After"]


async def test_traffic_resumes_a_paused_sandbox_where_the_operator_wants_it(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(GatewayConfig(start_seconds=10, resume_on_traffic=True))
    box = await Box.start(gate, upstream, await gate.make_client())
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    # A health check without a key is no reason to.
    assert (await _ask(box, "/health", "agent")).status == 409
    assert (await box.owner.sandbox(box.id) or {})["status"] == "PAUSED"
    assert (await box.get("/x")).status == 200
    assert (await box.owner.sandbox(box.id) or {})["status"] == "RUNNING"
