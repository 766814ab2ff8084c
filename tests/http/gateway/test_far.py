"""Ports of sandboxes on another server are reached through this one, and through that one's gateway."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.config.sandboxes import SandboxesConfig, SpecConfig
from agentsvc.config.schema import Config
from agentsvc.http.port_origins import label_of
from agentsvc.sandboxes.plugin_loader import PluginHost
from tests.conftest import FAST
from tests.http.gateway.steps import until
from tests.http.gateway.upstream import Upstream
from tests.service import Client, Service

type StartNear = Callable[..., Awaitable[Service]]

SANDBOXES_CONFIG = SandboxesConfig(
    default_backend="far", sweep_seconds=0.2, start_seconds=20, call_seconds=10
)


@pytest.fixture
async def far_user(gate: Service) -> Client:
    """Return the user at the other server whose the sandboxes are there."""
    return await gate.make_client("tenant", Role.MEMBER)


@pytest.fixture
async def start_near(gate: Service, far_user: Client, tmp_path: Path) -> AsyncIterator[StartNear]:
    """Return a function that starts a server which keeps its sandboxes at the other one."""
    services: list[Service] = []

    async def start(
        kind: str, sandboxes: SandboxesConfig = SANDBOXES_CONFIG, **more: Any
    ) -> Service:
        path = "/runtime" if kind == "remote" else ""
        backend = {"type": kind, "url": gate.url + path, "api_key": far_user.key, **more}
        config = Config(
            sandboxes=sandboxes,
            conversations=FAST.conversations,
            git=FAST.git,
            backends={"far": backend},
            specs={"far": SpecConfig(backend="far", image="web")},
        )
        service = Service(tmp_path / "near", config, PluginHost.load)
        services.append(service)
        await service.start()
        return service

    yield start
    for service in services:
        await service.close()


async def start_sandbox(near: Service) -> tuple[Client, str, str]:
    """Return an owner, the id of a running sandbox of theirs, and its key."""
    owner = await near.make_client("owner", Role.MEMBER)
    sandbox_id = (await owner.post("/api/v1/sandboxes?sandbox_spec_id=far")).json()["id"]
    running = await owner.wait_for_sandbox(sandbox_id, "RUNNING")
    return owner, sandbox_id, running["session_api_key"]


both = pytest.mark.parametrize("kind", ["agentsvc", "remote"])


@both
async def test_a_work_port_is_reached_and_gets_no_key_of_either_server(
    start_near: StartNear, far_user: Client, upstream: Upstream, kind: str
) -> None:
    owner, sandbox_id, key = await start_sandbox(await start_near(kind))
    path = f"/sandboxes/{sandbox_id}/worker_1/a%20b/c?x=1"
    answer = await owner.post(path, data=b"body", headers={"X-Own": "1"})
    assert answer.status == 200, answer.text
    seen = upstream.seen[-1]
    assert (seen.method, seen.raw_path, seen.body) == ("POST", "/a%20b/c?x=1", b"body")
    assert seen.one("X-Own") == "1"
    text = repr(seen.headers)
    assert [shown for shown in (owner.key, far_user.key, key) if str(shown) in text] == []


@both
async def test_the_agent_server_gets_the_key_that_the_other_server_made(
    start_near: StartNear, upstream: Upstream, kind: str
) -> None:
    owner, sandbox_id, key = await start_sandbox(await start_near(kind))
    assert (await owner.get(f"/sandboxes/{sandbox_id}/agent/api/x")).status == 200
    assert upstream.seen[-1].one("X-Session-API-Key") == key
    assert key in upstream.keys.values()


@both
async def test_a_web_socket_goes_through_both_gateways(start_near: StartNear, kind: str) -> None:
    near = await start_near(kind)
    _, sandbox_id, key = await start_sandbox(near)
    url = f"{near.url}/sandboxes/{sandbox_id}/worker_1/ws"
    async with (
        aiohttp.ClientSession(headers={"X-Session-API-Key": key}) as session,
        session.ws_connect(url) as socket,
    ):
        assert await socket.receive_str() == "hello"
        await socket.send_str("there and back")
        assert await socket.receive_str() == "THERE AND BACK"


@both
async def test_cookies_and_locations_stay_below_the_path_the_client_knows(
    start_near: StartNear, upstream: Upstream, kind: str
) -> None:
    owner, sandbox_id, _ = await start_sandbox(await start_near(kind))
    upstream.answer_headers = [
        ("Location", "/next"),
        ("Content-Location", f"{upstream.url}/here"),
        ("Set-Cookie", "a=1; Path=/sub"),
    ]
    path = f"/sandboxes/{sandbox_id}/worker_1"
    answer = await owner.get(f"{path}/x")
    assert answer.headers["Location"] == f"{path}/next"
    assert answer.headers["Content-Location"] == f"{path}/here"
    assert answer.headers["Set-Cookie"] == f"a=1; Path={path}/sub"


@both
async def test_the_other_server_away_changes_nothing_and_says_why(
    start_near: StartNear, gate: Service, kind: str
) -> None:
    owner, sandbox_id, _ = await start_sandbox(await start_near(kind))
    await gate.stop()
    try:
        await owner.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
        found = await owner.sandbox(sandbox_id)
    finally:
        await gate.start()
    assert found is not None
    assert found["status"] == "RUNNING"
    assert "cannot be reached" in found["status_detail"]
    # What was wanted meanwhile is done as soon as it can be.
    await owner.wait_for_sandbox(sandbox_id, "PAUSED")


@both
async def test_what_the_other_server_has_lost_is_missing(
    start_near: StartNear, far_user: Client, kind: str
) -> None:
    owner, sandbox_id, _ = await start_sandbox(await start_near(kind))
    [there] = (await far_user.get("/api/v1/sandboxes/search")).json()["items"]
    await far_user.delete(f"/api/v1/sandboxes/{there['id']}")
    await owner.wait_for_sandbox(sandbox_id, "MISSING")


@both
async def test_a_deleted_sandbox_is_deleted_there(
    start_near: StartNear, far_user: Client, kind: str
) -> None:
    owner, sandbox_id, _ = await start_sandbox(await start_near(kind))
    assert (await owner.delete(f"/api/v1/sandboxes/{sandbox_id}")).status == 200

    async def is_gone() -> bool:
        return bool((await far_user.get("/api/v1/sandboxes/search")).json()["items"] == [])

    await until(is_gone)


@both
async def test_a_wrong_key_is_said_to_be_wrong_and_nothing_is_lost(
    start_near: StartNear, kind: str
) -> None:
    sandboxes = msgspec.structs.replace(SANDBOXES_CONFIG, start_seconds=0.5)
    near = await start_near(kind, sandboxes, api_key="asvc_wrong")
    owner = await near.make_client("owner", Role.MEMBER)
    sandbox_id = (await owner.post("/api/v1/sandboxes?sandbox_spec_id=far")).json()["id"]
    failed = await owner.wait_for_sandbox(sandbox_id, "ERROR")
    assert "rejected the key: check `api_key`" in failed["status_detail"]


@both
async def test_a_key_that_was_changed_does_not_make_sandboxes_missing(
    start_near: StartNear, gate: Service, kind: str
) -> None:
    near = await start_near(kind)
    owner, sandbox_id, _ = await start_sandbox(near)
    other = await gate.make_client("other", Role.MEMBER)
    await near.stop()
    near.config.backends["far"]["api_key"] = other.key
    await near.start()
    owner = near.client_with(owner.key)

    async def is_told() -> bool:
        found = await owner.sandbox(sandbox_id)
        assert found is not None
        assert found["status"] == "RUNNING"
        return "another key" in (found["status_detail"] or "")

    await until(is_told)


async def test_a_user_with_a_key_of_their_own_starts_sandboxes_with_it(
    start_near: StartNear, gate: Service, far_user: Client
) -> None:
    near = await start_near("remote")
    other = await gate.make_client("other", Role.MEMBER)
    owner = await near.make_client("owner", Role.MEMBER)
    await owner.save_settings(sandbox_api_key=other.key)
    sandbox_id = (await owner.post("/api/v1/sandboxes?sandbox_spec_id=far")).json()["id"]
    await owner.wait_for_sandbox(sandbox_id, "RUNNING")
    headers = {"X-API-Key": str(other.key), "X-Session-API-Key": ""}
    there = (await other.get("/runtime/list", headers=headers)).json()["runtimes"]
    assert len(there) == 1
    assert (await far_user.get("/runtime/list")).json() == {"runtimes": []}
    await near.restart()
    owner = near.client_with(owner.key)
    await owner.delete(f"/api/v1/sandboxes/{sandbox_id}")

    async def is_gone() -> bool:
        return bool((await other.get("/runtime/list")).json() == {"runtimes": []})

    await until(is_gone)


async def test_the_isolation_there_is_told_here(start_near: StartNear) -> None:
    owner, sandbox_id, _ = await start_sandbox(await start_near("agentsvc"))
    found = await owner.sandbox(sandbox_id)
    assert found is not None
    assert found["isolation"] in ("none", "remote")
    assert found["facts"]["callbacks"] == "none"


async def test_a_page_at_an_origin_of_its_own_is_not_kept_apart_by_the_other_server(
    start_near: StartNear,
) -> None:
    near = await start_near("agentsvc")
    owner, sandbox_id, _ = await start_sandbox(near)
    answer = await owner.get(f"/sandboxes/{sandbox_id}/worker_1/x")
    assert len([name for name in answer.headers if name == "Content-Security-Policy"]) == 1
    label = label_of(sandbox_id, "worker_1")
    host = f"{label}.localhost:{near.url.rpartition(':')[2]}"
    answer = await owner.get("/x", headers={"Host": host})
    assert answer.status == 200, answer.text
    assert "Content-Security-Policy" not in answer.headers


@both
async def test_a_full_server_is_said_to_be_full_and_tried_again(
    start_near: StartNear, gate: Service, kind: str
) -> None:
    full = msgspec.structs.replace(gate.config.sandboxes, max_running=1)
    gate.config = msgspec.structs.replace(gate.config, sandboxes=full)
    await gate.restart()
    owner, first_id, _ = await start_sandbox(await start_near(kind))
    second_id = (await owner.post("/api/v1/sandboxes?sandbox_spec_id=far")).json()["id"]

    async def is_told() -> bool:
        found = await owner.sandbox(second_id)
        assert found is not None
        return found["status"] == "STARTING" and " responded with 429: " in (
            found["status_detail"] or ""
        )

    await until(is_told)
    await owner.delete(f"/api/v1/sandboxes/{first_id}")
    await owner.wait_for_sandbox(second_id, "RUNNING")


async def test_a_runtime_has_its_work_ports_below_its_own_url(
    gate: Service, far_user: Client, upstream: Upstream
) -> None:
    start = {"image": "web", "session_id": "s"}
    made = (await far_user.post("/runtime/start", json=start)).json()
    await far_user.wait_for_sandbox(made["runtime_id"], "RUNNING")
    path = f"/{made['runtime_id']}"
    assert made["url"] == gate.url + path
    upstream.answer_headers = [("Location", "/next"), ("Set-Cookie", "a=1")]
    headers = {"X-Session-API-Key": made["session_api_key"]}
    client = gate.client_with(None)
    for port, inner in (("/work-1", "/a%2Fb?x=1"), ("/vscode", "/"), ("", "/docs"), ("", "/api/x")):
        answer = await client.get(f"{path}{port}{inner}", headers=headers)
        assert answer.status == 200, answer.text
        assert upstream.seen[-1].raw_path == inner
        assert answer.headers["Location"] == f"{path}{port}/next"
        assert answer.headers["Set-Cookie"] == f"a=1; Path={path}{port}/"
    assert (await client.get(f"{path}/work-2/", headers=headers)).status == 404
    assert (await client.get(f"{path}/work-1/")).status == 401
    assert (await client.get(f"/{'0' * 32}/work-1/", headers=headers)).status == 404
