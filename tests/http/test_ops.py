"""What whoever operates the server asks, and what a front end asks before it has a key."""

import asyncio
import re
from importlib.metadata import requires
from pathlib import Path

import msgspec
import pytest

from agentsvc import __version__
from agentsvc.app import build_app
from agentsvc.config.schema import Config, ServerConfig
from agentsvc.http.routes import Scope, mounted
from agentsvc.testing.backend import FakeWorld
from tests.service import WAIT_SECONDS, Client, Service


@pytest.fixture
async def anyone(service: Service) -> Client:
    return service.client_with(None)


async def test_the_server_is_alive_healthy_and_ready(anyone: Client) -> None:
    assert (await anyone.get("/alive")).json() == {"status": "ok"}
    assert (await anyone.get("/health")).json() == "OK"
    assert (await anyone.get("/ready")).json() == "OK"


async def test_a_server_whose_backend_is_out_of_reach_is_alive_and_not_ready(
    anyone: Client, fake_world: FakeWorld
) -> None:
    fake_world.unreachable = True
    answer = await anyone.get("/ready")
    assert answer.status == 503
    assert answer.json()["detail"] == "The fake world is out of reach"
    assert "Retry-After" in answer.headers
    assert (await anyone.get("/alive")).status == 200


async def test_a_server_whose_backend_does_not_answer_is_not_ready(
    service: Service, anyone: Client, fake_world: FakeWorld
) -> None:
    sandboxes = msgspec.structs.replace(service.config.sandboxes, call_seconds=0.1)
    service.config = msgspec.structs.replace(service.config, sandboxes=sandboxes)
    await service.restart()
    fake_world.slow = 1
    answer = await anyone.get("/ready")
    assert answer.status == 503
    assert answer.json()["detail"] == "Backend fake is not usable: it does not answer"


async def test_a_server_whose_backend_fails_as_it_should_not_is_alive_and_not_ready(
    anyone: Client, fake_world: FakeWorld
) -> None:
    answer = None
    async with asyncio.timeout(anyone.patience):
        # The server asks its backend in the background, too, which may take the failure.
        while answer is None or answer.status == 200:
            fake_world.fail_next = KeyError("no idea")
            answer = await anyone.get("/ready")
    assert answer.status == 503
    assert answer.json()["detail"].endswith("its probe raised an unexpected error")
    assert (await anyone.get("/alive")).status == 200


async def test_server_info_says_to_everybody_what_the_server_is(
    anyone: Client, service: Service
) -> None:
    asked = [anyone, service.client_with("wrong")]
    for info in [(await one.get("/server_info")).json() for one in asked]:
        assert info["agentsvc_version"] == __version__
        assert 0 <= info["idle_time"] <= info["uptime"]
        assert set(info) == {
            *("title", "version", "sdk_version", "agentsvc_version", "uptime", "idle_time")
        }


async def test_server_info_says_to_users_what_the_server_uses(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when the directory of a release is replaced by that of the next one.
    (tmp_path / "release").mkdir()
    monkeypatch.chdir(tmp_path / "release")
    (tmp_path / "release").rmdir()
    info = (await client.get("/server_info")).json()
    resources = info["resources"]
    assert resources["memory"]["rss"] > 0
    assert resources["memory"]["vms"] > resources["memory"]["rss"]
    assert 0 < resources["disk"]["percent"] < 100
    assert set(resources["io"]) == {"read_bytes", "write_bytes"}
    assert resources["cpu_percent"] >= 0


async def test_clients_that_ask_for_a_version_get_that_of_the_agent_server(anyone: Client) -> None:
    pinned = [one for one in requires("agentsvc") or () if one.startswith("openhands-sdk==")]
    info = (await anyone.get("/server_info")).json()
    assert {f"openhands-sdk=={info[name]}" for name in ("version", "sdk_version")} == {
        one.partition(";")[0].strip() for one in pinned
    }


async def test_a_front_end_learns_without_a_key_what_to_show(anyone: Client) -> None:
    config = (await anyone.get("/api/v1/web-client/config")).json()
    assert config["app_mode"] == "oss"
    assert config["posthog_client_key"] is None
    assert config["feature_flags"]["enable_billing"] is False
    assert config["feature_flags"]["allow_user_llm_configuration"] is True
    assert config["kind"] == "WebClientConfig"
    assert config["updated_at"].endswith("Z")


async def test_there_are_no_saved_agents(client: Client) -> None:
    found = (await client.get("/api/agent-profiles")).json()
    assert found == {"profiles": [], "active_agent_profile_id": None}


ALWAYS_OPEN = {"/alive", "/health", "/ready", "/server_info", "/api/v1/web-client/config"}


LOGIN_OPEN = {"/api/v1/logins", "/api/v1/logins/link", "/api/v1/logins/providers"}
DELIVERIES_OPEN = {"/api/automation/v1/events/{automation_id}"}
"""What wants a signature in place of a key."""
DOCS_OPEN = {"/docs", "/docs/viewer.css", "/docs/viewer.js", "/docs/icon.svg"}


async def test_only_these_operations_are_open_without_the_device_login(tmp_path: Path) -> None:
    config = Config(server=ServerConfig(device_login=False))
    app = await build_app(config, data_dir=tmp_path)
    opened = {route.path for route in mounted(app) if route.scope is Scope.OPEN}
    assert opened == ALWAYS_OPEN | LOGIN_OPEN | DOCS_OPEN | DELIVERIES_OPEN


async def test_the_device_login_opens_its_own_and_is_on_by_default(tmp_path: Path) -> None:
    app = await build_app(Config(), data_dir=tmp_path)
    opened = {route.path for route in mounted(app) if route.scope is Scope.OPEN}
    assert opened - ALWAYS_OPEN - LOGIN_OPEN - DOCS_OPEN - DELIVERIES_OPEN == {
        "/oauth/device/authorize",
        "/oauth/device/token",
        "/oauth/device/verify",
        "/oauth/device/verify.css",
    }


async def test_every_other_operation_needs_a_key(anyone: Client, service: Service) -> None:
    for route in mounted(service.app):
        if route.scope is Scope.OPEN:
            continue
        path = re.sub(r"\{\w+\}", "0" * 32, route.path)
        answer = await anyone.request(route.method, path)
        assert answer.status == 401, f"{route.method} {path}"
        assert answer.json()["code"] == "not_authenticated"


# How paths and methods are read


@pytest.mark.parametrize("path", sorted(ALWAYS_OPEN))
async def test_whoever_asks_without_a_key_may_ask_for_the_head_only(
    anyone: Client, path: str
) -> None:
    whole, head = await anyone.get(path), await anyone.request("HEAD", path)
    assert (head.status, head.body) == (200, b"")
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]


async def test_a_head_is_answered_where_a_key_is_needed(client: Client, anyone: Client) -> None:
    answer = await client.request("HEAD", "/api/v1/settings")
    assert (answer.status, answer.body) == (200, b"")
    assert (await anyone.request("HEAD", "/api/v1/settings")).status == 401
    stream = await client.request("HEAD", "/api/v1/events/stream")
    assert (stream.status, stream.body) == (200, b"")
    assert stream.headers["Content-Type"].startswith("text/event-stream")


PATHS = [
    "/alive",
    "/api/settings",
    "/api/options/models",
    "/api/conversations",
    "/api/v1/app-conversations/search",
    "/api/v1/app-conversations/{id}",
]


@pytest.mark.parametrize("path", PATHS)
async def test_a_slash_behind_a_path_changes_nothing(client: Client, path: str) -> None:
    path = path.replace("{id}", await client.start_conversation(None))
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            plain, slashed = await client.get(path), await client.get(f"{path}/")
            # What is asked for may change between the two.
            if (await client.get(path)).json() == plain.json():
                break
    assert (slashed.status, slashed.json()) == (200, plain.json())
    assert (await client.get(f"{path}//")).status == 404


async def test_a_slash_behind_a_path_opens_nothing(anyone: Client) -> None:
    assert (await anyone.get("/api/settings/")).status == 401


async def test_a_post_to_a_path_with_a_slash_behind_it_is_done(client: Client) -> None:
    answer = await client.post("/api/v1/secrets/", json={"name": "A", "value": "1"})
    assert answer.status == 201


async def test_every_operation_is_listed_once(service: Service) -> None:
    listed = [(route.method, route.path) for route in mounted(service.app)]
    assert len(listed) == len(set(listed))
    assert all(method != "HEAD" and not path.endswith("/") for method, path in listed)


@pytest.mark.parametrize(
    "path",
    [
        "/api/conversations",
        "/api/v1/app-conversations/search",
        "/api/v1/sandboxes/search",
        "/api/v1/secrets/search",
        "/api/v1/config/models/search",
    ],
)
async def test_an_empty_page_id_is_the_first_page(client: Client, path: str) -> None:
    answer = await client.get(f"{path}?page_id=")
    assert (answer.status, answer.json()) == (200, (await client.get(path)).json())
