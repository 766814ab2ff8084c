"""A browser that is logged in follows conversations at the event socket without a key."""

import asyncio
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.http.v0.steps import start_running
from tests.service import Client, Service, login_headers
from tests.sockets import Follower, address

HANDSHAKE = "/socket.io/?EIO=4&transport=polling"


async def _log_in(client: Client) -> dict[str, str]:
    return login_headers(await client.post("/api/v1/logins", json={"api_key": str(client.key)}))


async def test_a_login_opens_the_socket_until_it_ends(client: Client, service: Service) -> None:
    name = await start_running(client)
    own = {**await _log_in(client), "Origin": service.url}
    follower = Follower(patience=client.patience)
    await follower.client.connect(
        address(client.base_url, conversation_id=name),
        transports=["websocket"],
        headers={**own},  # it takes the cookie out
        wait_timeout=client.patience,
    )
    await follower.say("please work")
    await follower.until_state("finished")
    nobody = service.client_with(None)
    answer = await nobody.request("DELETE", "/api/v1/logins/current", headers=own)
    assert answer.status in (200, 204), answer.text
    await asyncio.wait_for(follower.is_over.wait(), client.patience)


async def test_a_login_polls_as_browsers_do(client: Client, service: Service) -> None:
    name = await start_running(client)
    cookie = await _log_in(client)
    reads = {**cookie, "Sec-Fetch-Site": "same-origin"}
    nobody = service.client_with(None)
    path = f"{HANDSHAKE}&conversation_id={name}"
    opened = await nobody.get(path, headers=reads)
    assert opened.status == 200, opened.text
    path = f"{path}&sid={msgspec.json.decode(opened.body[1:])['sid']}"
    writes = {**cookie, "Origin": service.url}
    assert (await nobody.post(path, data=b"40", headers=writes)).status == 200
    assert (await nobody.get(path, headers=reads)).text.startswith('40{"sid":')


@pytest.mark.parametrize(
    ("method", "said", "status"),
    [
        ("GET", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("GET", {"Origin": "http://evil.test"}, 401),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 401),
        ("POST", {}, 401),
        ("POST", {"Origin": "http://evil.test"}, 401),
    ],
)
async def test_a_login_counts_for_pages_of_the_server_only(
    client: Client, service: Service, method: str, said: dict[str, str], status: int
) -> None:
    headers = {**await _log_in(client), **said}
    nobody = service.client_with(None)
    assert (await nobody.request(method, HANDSHAKE, headers=headers)).status == status


@pytest.mark.parametrize("said", [{}, {"Origin": "http://evil.test"}, {"Origin": "null"}])
async def test_no_other_page_opens_a_websocket_with_a_login(
    client: Client, service: Service, said: dict[str, Any]
) -> None:
    url = f"{service.url}/socket.io/?EIO=4&transport=websocket"
    headers = {**await _log_in(client), **said}
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(url, headers=headers)
    assert caught.value.status == 401


async def test_a_login_that_is_over_opens_nothing(client: Client, service: Service) -> None:
    login = await _log_in(client)
    nobody = service.client_with(None)
    own = {**login, "Origin": service.url}
    assert (await nobody.get(HANDSHAKE, headers=own)).status == 200
    await nobody.request("DELETE", "/api/v1/logins/current", headers=own)
    assert (await nobody.get(HANDSHAKE, headers=own)).status == 401


@pytest.mark.parametrize("transport", ["polling", "websocket"])
async def test_a_stolen_cookie_opens_nothing(
    client: Client, service: Service, transport: str
) -> None:
    cookie = (await _log_in(client))["Cookie"]
    own = {"Cookie": cookie, "Origin": service.url, "Sec-Fetch-Site": "same-origin"}
    if transport == "polling":
        assert (await service.client_with(None).get(HANDSHAKE, headers=own)).status == 401
        return
    url = f"{service.url}/socket.io/?EIO=4&transport=websocket"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(url, headers=own)
    assert caught.value.status == 401
