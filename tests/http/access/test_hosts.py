"""Under a name that is not the server's it answers nobody who shows no key."""

from pathlib import Path

import msgspec

from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.plugins import load_plugins
from tests.service import Client, Service

EVIL = {"Host": "evil.example"}


async def test_without_a_key_another_name_gets_nothing(client: Client, service: Service) -> None:
    nobody = service.client_with(None)
    for path in ("/", "/login", "/api/v1/web-client/config", "/server_info", "/nowhere"):
        answer = await nobody.get(path, headers=EVIL)
        assert (answer.status, answer.json()["code"]) == (421, "unknown_host"), path
        assert "server.allowed_hosts" in answer.json()["detail"]
        assert (await nobody.get(path)).status != 421
    preflight = {**EVIL, "Origin": "http://evil.example", "Access-Control-Request-Method": "GET"}
    assert (await nobody.request("OPTIONS", "/api/settings", headers=preflight)).status == 421


async def test_a_login_counts_under_no_other_name(client: Client, service: Service) -> None:
    login = await client.post("/api/v1/logins", json={"api_key": client.key})
    cookie = {"Cookie": login.headers["Set-Cookie"].partition(";")[0]}
    nobody = service.client_with(None)
    assert (await nobody.get("/api/settings", headers=cookie)).status == 200
    assert (await nobody.get("/api/settings", headers={**cookie, **EVIL})).status == 421


async def test_who_shows_a_key_is_answered_under_any_name(client: Client) -> None:
    assert (await client.get("/api/settings", headers=EVIL)).status == 200
    wrong = {"X-Session-API-Key": "wrong"}
    assert (await client.get("/api/settings", headers={**EVIL, **wrong})).status == 401


async def test_signs_of_life_are_for_everybody(client: Client, service: Service) -> None:
    nobody = service.client_with(None)
    for path in ("/alive", "/health", "/ready"):
        assert (await nobody.get(path, headers=EVIL)).status == 200


async def test_the_event_socket_opens_under_no_other_name(service: Service) -> None:
    nobody = service.client_with(None)
    answer = await nobody.get("/socket.io/?EIO=4&transport=polling", headers=EVIL)
    assert answer.status == 421


async def test_a_trusted_proxy_decides_which_names_it_passes_on(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    section = msgspec.structs.replace(FAST.server, trusted_proxies=("127.0.0.1",))
    config = msgspec.structs.replace(FAST, server=section)
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    try:
        await service.start()
        assert (await service.client_with(None).get("/login", headers=EVIL)).status == 200
    finally:
        await service.close()
