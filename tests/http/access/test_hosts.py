"""Under a name that is not the server's it answers nobody who shows no good key."""

from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Client, Service, login_headers

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
    cookie = login_headers(login)
    nobody = service.client_with(None)
    assert (await nobody.get("/api/settings", headers=cookie)).status == 200
    assert (await nobody.get("/api/settings", headers={**cookie, **EVIL})).status == 421


async def test_who_shows_a_good_key_is_answered_under_any_name(
    client: Client, service: Service
) -> None:
    assert (await client.get("/api/settings", headers=EVIL)).status == 200
    query = f"/api/v1/events/stream?session_api_key={client.key}"
    socket = {**EVIL, "Connection": "Upgrade", "Upgrade": "websocket"}
    nobody = service.client_with(None)
    assert (await nobody.get(query, headers=socket)).status != 421


@pytest.mark.parametrize("made_up", ["wrong", "asvc_wrong", "a.b.c", "schl\u00fcssel", "x" * 4000])
async def test_a_key_that_is_made_up_changes_nothing(service: Service, made_up: str) -> None:
    nobody = service.client_with(None)
    for path in ("/", "/login", "/server_info", "/api/settings", "/socket.io/?EIO=4", "/nowhere"):
        mark = "&" if "?" in path else "?"
        asked = await nobody.get(f"{path}{mark}session_api_key={quote(made_up)}", headers=EVIL)
        assert (asked.status, asked.json()["code"]) == (421, "unknown_host"), path
    for header in ("X-Session-API-Key", "X-Access-Token", "Authorization"):
        value = f"Bearer {made_up}" if header == "Authorization" else made_up
        answer = await nobody.get("/", headers={**EVIL, header: value})
        assert answer.status == 421, header


async def test_of_many_keys_in_a_query_only_some_are_looked_up(
    client: Client, service: Service
) -> None:
    nobody = service.client_with(None)
    made_up = "".join(f"&session_api_key={number}" for number in range(300))
    path = f"/api/v1/events/stream?x={made_up}&session_api_key={client.key}"
    assert (await nobody.get(path, headers=EVIL)).status == 421
    assert (await nobody.get(path)).status == 401
    # What is not looked at would be passed on, too.
    answer = await nobody.get(
        f"/sandboxes/{'a' * 32}/web/?x={made_up}&session_api_key={client.key}"
    )
    assert answer.status == 400
    assert "keys in the query" in answer.text


async def test_who_guesses_keys_under_another_name_is_counted(
    tmp_path: Path, fake_world: FakeWorld
) -> None:
    limits = msgspec.structs.replace(FAST.limits, refused_per_minute=5)
    config = msgspec.structs.replace(FAST, limits=limits)
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    try:
        await service.start()
        asked = [
            await service.client_with(f"asvc_{i}").get("/api/keys", headers=EVIL) for i in range(12)
        ]
        assert {one.status for one in asked} == {421, 429}
    finally:
        await service.close()


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
