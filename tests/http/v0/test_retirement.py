"""The older generation says that it goes, and can be switched off."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agentsvc.config.schema import V0Config
from agentsvc.http import v0
from agentsvc.http.routes import Route
from agentsvc.http.v0.socket_opener import SOCKET_PATHS
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.http.v0.steps import PATH, UNKNOWN_ID
from tests.plugin_loading import load_plugins
from tests.service import Client, Service


@pytest.fixture
async def newer_only(tmp_path: Path, fake_world: FakeWorld) -> AsyncIterator[Service]:
    """Yield a server that has the older generation switched off."""

    config = msgspec.structs.replace(FAST, v0=V0Config(enabled=False))
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


def path_of(route: Route) -> str:
    path = route.path.replace("{conversation_id}", UNKNOWN_ID)
    return path.replace("{secret_id}", "NAME")


@pytest.mark.parametrize("route", v0.ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_every_answer_says_that_it_is_deprecated(client: Client, route: Route) -> None:
    answer = await client.request(route.method, path_of(route))
    assert answer.headers["Deprecation"] == "@1761955200"
    assert answer.headers["Link"].startswith("</api/v1/")
    assert answer.headers["Link"].endswith('>; rel="successor-version"')


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", PATH, 405),
        ("GET", f"{PATH}/x/nowhere", 404),
        ("GET", f"{PATH}/{'a' * 101}", 400),
        ("POST", "/api/settings", 422),
    ],
)
async def test_a_refusal_says_it_too(client: Client, method: str, path: str, status: int) -> None:
    answer = await client.request(method, path)
    assert answer.status == status
    assert "Deprecation" in answer.headers


async def test_what_follows_is_below_the_path_of_the_server(
    service: Service, client: Client
) -> None:
    server = msgspec.structs.replace(service.config.server, public_url="https://a.example/agents")
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    answer = await client.get(f"/agents{PATH}")
    assert answer.headers["Link"] == '</agents/api/v1/app-conversations>; rel="successor-version"'


async def test_the_event_socket_says_it_too(client: Client) -> None:
    answer = await client.get("/socket.io/?EIO=4&transport=polling")
    assert (answer.status, "Deprecation" in answer.headers) == (200, True)


async def test_a_caller_without_a_key_is_told_too(service: Service) -> None:
    answer = await (await service.make_client(None)).get(PATH)
    assert (answer.status, "Deprecation" in answer.headers) == (401, True)


@pytest.mark.parametrize("path", ["/alive", "/api/v1/app-conversations", "/api/nope"])
async def test_other_answers_say_nothing_of_it(client: Client, path: str) -> None:
    answer = await client.get(path)
    assert not {"Deprecation", "Link"} & set(answer.headers)


@pytest.mark.parametrize("key", ["admin", None])
async def test_switched_off_it_says_so_everywhere(newer_only: Service, key: str | None) -> None:
    client = await newer_only.make_client(key)
    for route in v0.ROUTES:
        answer = await client.request(route.method, path_of(route))
        assert (answer.status, answer.json()["code"]) == (404, "not_found")
        assert "`v0.enabled`" in answer.json()["detail"]
    for path in SOCKET_PATHS:
        answer = await client.get(f"{path}?EIO=4&transport=polling")
        assert (answer.status, answer.json()["code"]) == (404, "not_found")
        assert "`v0.enabled`" in answer.json()["detail"]


async def test_the_newer_generation_works_without_the_older(newer_only: Service) -> None:
    client = await newer_only.make_client()
    assert (await client.get("/api/v1/app-conversations/search")).status == 200
    assert (await client.get("/alive")).status == 200
