"""Who is refused at the event socket and how, and what clients cannot do to the server."""

import asyncio
import contextlib
import io
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import socketio
from socketio.exceptions import ConnectionError as NotConnected
from socketio.exceptions import SocketIOError

from agentsvc.accounts.keys import Role
from agentsvc.base.values import monotonic
from agentsvc.http.keys import KEYRING
from agentsvc.http.v0.listeners import MAX_ACTIONS
from agentsvc.http.v0.socket_opener import SOCKET_OPENER
from agentsvc.http.v0.sockets import MAX_OF_USER
from agentsvc.sandboxes.plugin_loader import PluginHost
from agentsvc.testing.backend import FakeWorld
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.http.v0.steps import UNKNOWN_ID, start_running, wait_for_state
from tests.service import Answer, Client, Service
from tests.sockets import BOTH, Follower, address, follow

HANDSHAKE = "/socket.io/?EIO=4&transport=polling"
EACH = pytest.mark.parametrize("transport", BOTH)


async def refusal(client: Client, *transports: str, **query: Any) -> Any:
    """Return with what a connect is refused."""
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sio = socketio.AsyncClient(reconnection=False)
    sio.on("connect_error", told.set_result)
    with pytest.raises(NotConnected):
        await sio.connect(address(client.base_url, **query), transports=list(transports or BOTH))
    return await asyncio.wait_for(told, client.patience)


async def handshake(client: Client, **query: str) -> Answer:
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return await client.get(HANDSHAKE + more)


async def connect(client: Client, **query: str) -> str:
    """Open a connection that polls by hand, and return the path of it."""
    answer = await handshake(client, **query)
    assert answer.status == 200, answer.text
    sid = msgspec.json.decode(answer.body[1:])["sid"]
    return f"{HANDSHAKE}&sid={sid}"


# Who is refused


@EACH
async def test_a_wrong_key_is_refused_in_the_words_of_the_protocol(
    client: Client, transport: str
) -> None:
    name = await start_running(client)
    told = await refusal(client, transport, conversation_id=name, session_api_key="wrong")
    assert told == {"message": "invalid_session_api_key"}


@pytest.mark.parametrize("path", ["/socket.io/", "/socket.io", HANDSHAKE, f"{HANDSHAKE}&sid=x"])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_without_a_key_nothing_is_answered(service: Service, method: str, path: str) -> None:
    nobody = await service.make_client(None)
    answer = await nobody.request(method, path)
    assert (answer.status, answer.json()["code"]) == (401, "not_authenticated")


async def test_without_a_key_no_websocket_is_opened(service: Service) -> None:
    url = f"{service.url}/socket.io/?EIO=4&transport=websocket"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await session.ws_connect(url)
    assert caught.value.status == 401


@EACH
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "No conversation_id in query params"),
        ({"conversation_id": ""}, "No conversation_id in query params"),
        ({"conversation_id": "x" * 101}, "The conversation_id is not a valid id"),
        ({"conversation_id": "a\0b"}, "The conversation_id is not a valid id"),
        ({"conversation_id": UNKNOWN_ID}, f"Conversation {UNKNOWN_ID} not found"),
        ({"conversation_id": "my-own"}, "Conversation my-own not found"),
    ],
)
async def test_a_client_that_names_no_conversation_is_refused(
    client: Client, transport: str, query: dict[str, str], message: str
) -> None:
    told = await refusal(client, transport, session_api_key=client.key, **query)
    assert told == {"message": message}


@pytest.mark.parametrize("latest", ["-2", str(2**63), "9" * 5000])
async def test_what_is_the_number_of_no_event_is_refused(client: Client, latest: str) -> None:
    name = await start_running(client)
    told = await refusal(
        client, conversation_id=name, session_api_key=client.key, latest_event_id=latest
    )
    assert told == {"message": "The latest_event_id should be the id of an event, or -1"}


async def test_another_users_conversation_is_not_found(client: Client, service: Service) -> None:
    name = await start_running(client)
    other = await service.make_client("eve", Role.MEMBER)
    told = await refusal(other, conversation_id=name, session_api_key=other.key)
    assert told == {"message": f"Conversation {name} not found"}


@pytest.mark.parametrize("header", ["X-Session-API-Key", "Authorization", "X-Access-Token"])
async def test_a_key_may_come_in_a_header(client: Client, header: str) -> None:
    name = await start_running(client, initial_user_msg="please work")
    key = f"Bearer {client.key}" if header == "Authorization" else str(client.key)
    follower = Follower(patience=client.patience)
    await follower.client.connect(
        address(client.base_url, conversation_id=name), headers={header: key}
    )
    await follower.until_state("finished")
    await follower.client.disconnect()


async def test_nobody_reads_along_with_a_key_of_their_own(client: Client, service: Service) -> None:
    path = await connect(client)
    other = await service.make_client("eve", Role.MEMBER)
    for method in ("GET", "POST"):
        assert (await other.request(method, path)).status == 401
    nobody = service.client_with("wrong")
    assert (await nobody.get(path)).status == 401


async def test_the_key_is_in_no_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    name = await start_running(client)
    for transport in BOTH:
        async with follow(client.base_url, client.key, name, transports=[transport]) as follower:
            await follower.say("please work")
            await follower.until_state("finished")
    ours = [record for record in caplog.records if record.name.startswith("agentsvc")]
    assert ours
    assert not [record for record in ours if str(client.key) in record.getMessage()]
    assert not [record for record in ours if "please work" in record.getMessage()]
    assert not [record for record in ours if record.levelno >= logging.ERROR]


async def test_a_key_that_is_no_longer_valid_ends_the_connection(
    client: Client, service: Service
) -> None:
    name = await start_running(client)
    guest = await service.make_client()
    async with (
        follow(client.base_url, guest.key, name) as one,
        follow(client.base_url, guest.key, name) as other,
    ):
        keys = service.app[KEYRING]
        principal = await keys.identify(str(guest.key))
        await keys.revoke_key(principal.key_id)
        with contextlib.suppress(SocketIOError):
            # It may be over by now.
            await one.say("still here")
        await asyncio.wait_for(one.is_over.wait(), client.patience)
        await asyncio.wait_for(other.is_over.wait(), client.patience)
    assert "still here" not in str(await client.events(name))


async def test_who_follows_nothing_is_let_go_of(client: Client, service: Service) -> None:
    name = await start_running(client)
    path = await connect(client)
    async with follow(client.base_url, client.key, name) as follower:
        await (await service.app[SOCKET_OPENER].sockets(service.app)).tidy(at=monotonic() + 20)
        async with asyncio.timeout(client.patience):
            while (await client.get(path)).status == 200:
                pass
        await follower.say("please work")
        await follower.until_state("finished")


async def test_a_user_has_so_many_connections_and_no_more(client: Client, service: Service) -> None:
    for _ in range(MAX_OF_USER):
        assert (await handshake(client)).status == 200
    answer = await handshake(client)
    assert (answer.status, answer.json()["code"]) == (429, "too_many_requests")
    other = await service.make_client("eve", Role.MEMBER)
    assert (await handshake(other)).status == 200


# What is no request of the protocol


@pytest.mark.parametrize(
    "query",
    ["", "EIO=3", "EIO=4&transport=pigeon", "EIO=4&sid=nobodys", "EIO=4&j=0", "EIO=4&sid=%00"],
)
async def test_what_is_no_handshake_is_refused(client: Client, query: str) -> None:
    for method in ("GET", "POST"):
        answer = await client.request(method, f"/socket.io/?{query}")
        assert (answer.status, set(answer.json())) == (400, {"detail", "code", "request_id"})
        assert "None" not in answer.json()["detail"]


async def test_a_websocket_without_its_headers_is_refused(client: Client) -> None:
    url = "/socket.io/?EIO=4&transport=websocket"
    assert (await client.get(url)).status == 400
    path = await connect(client)
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade"}
    for headers in ({"Upgrade": "websocket"}, upgrade):
        assert (await client.get(url, headers=headers)).status == 400
    path = path.replace("polling", "websocket")
    assert (await client.get(path, headers=upgrade)).status == 400


async def test_other_methods_are_refused(client: Client) -> None:
    for method in ("PUT", "DELETE", "PATCH"):
        assert (await client.request(method, HANDSHAKE)).status == 405


@pytest.mark.parametrize("body", [b"\xff", b"x", b"d=", b"4" + b"[" * 100_000], ids=range(4))
async def test_what_is_no_payload_is_refused(client: Client, body: bytes) -> None:
    path = await connect(client)
    answer = await client.post(path, data=body)
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_a_payload_that_is_too_large_is_refused(client: Client) -> None:
    path = await connect(client)
    answer = await client.post(path, data=io.BytesIO(b"4" * (FAST.server.max_body_bytes + 1)))
    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


@pytest.mark.parametrize(
    "frame",
    ["", "x", "4", "42[]", '42["connect"]', "4" + "[" * 100_000, "451-[]", b"\0", "9", "6", "2"],
    ids=range(11),
)
async def test_a_websocket_that_speaks_otherwise_hurts_only_itself(
    client: Client, frame: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    name = await start_running(client)
    url = f"{client.base_url}/socket.io/?EIO=4&transport=websocket&conversation_id={name}"
    async with (
        follow(client.base_url, client.key, name) as follower,
        aiohttp.ClientSession(headers={"X-Session-API-Key": str(client.key)}) as session,
        session.ws_connect(url) as socket,
    ):
        await socket.send_str("40")
        await (socket.send_bytes(frame) if isinstance(frame, bytes) else socket.send_str(frame))
        await socket.send_str('42["oh_action",{}]')
        await follower.say("please work")
        await follower.until_state("finished")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


async def test_nobody_is_heard_after_a_goodbye(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = service.client_with("wrong")
    assert (await stranger.post(await connect(stranger), data=b"1\x1e40")).status == 200
    url = f"{service.url}/socket.io/?EIO=4&transport=websocket&session_api_key=wrong"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        await socket.send_str("1")
        await socket.send_str("40")
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


# What takes room


async def test_who_says_too_much_at_once_is_let_go_of(
    client: Client, fake_agent: FakeAgent
) -> None:
    name = await start_running(client, initial_user_msg="please work")
    await wait_for_state(client, name, "finished")
    async with follow(client.base_url, client.key, name, latest_event_id=100) as follower:
        for number in range(20 * MAX_ACTIONS):
            if not follower.client.connected:
                break
            await follower.say(f"number {number}")
        await asyncio.wait_for(follower.is_over.wait(), client.patience)
        assert follower.errors[-1:] == ["Too many actions at once"]


@pytest.fixture
async def impatient(tmp_path: Path, fake_world: FakeWorld) -> AsyncIterator[Client]:
    """Return a client of a server that does not wait long."""

    def make_plugins() -> PluginHost:
        host = PluginHost.load(disable=["process"])
        host.add("fake", fake_world.plugin(), version="", origin="tests")
        return host

    server = msgspec.structs.replace(FAST.server, request_seconds=2)
    config = msgspec.structs.replace(FAST, server=server)
    service = Service(tmp_path / "impatient", config, make_plugins)
    await service.start()
    client = await service.make_client()
    await client.save_settings()
    yield client
    await service.close()


LARGE = "x" * 50_000


async def make_large(client: Client) -> str:
    """Return a conversation whose history has more than a client is sent unread."""
    name = await start_running(client)
    for _ in range(12):
        answer = await client.post(f"/api/conversations/{name}/message", json={"message": LARGE})
        assert answer.status == 200, answer.text
        await wait_for_state(client, name, "finished")
    return name


async def test_a_client_that_reads_slowly_gets_all_of_it_in_pieces(client: Client) -> None:
    name = await make_large(client)
    path = await connect(client, conversation_id=name)
    assert (await client.post(path, data=b"40")).status == 200
    read = 0
    async with asyncio.timeout(client.patience):
        while read < 12 * len(LARGE):
            answer = await client.get(path)
            assert answer.status == 200
            assert len(answer.body) < 6 * len(LARGE)
            read += len(answer.body)


async def test_a_websocket_that_is_not_read_is_let_go_of(impatient: Client) -> None:
    name = await start_running(impatient)
    for _ in range(12):
        text = "x" * 500_000
        answer = await impatient.post(f"/api/conversations/{name}/message", json={"message": text})
        assert answer.status == 200, answer.text
        await wait_for_state(impatient, name, "finished")
    host, _, port = impatient.base_url.removeprefix("http://").partition(":")
    path = f"/socket.io/?EIO=4&transport=websocket&conversation_id={name}"
    head = (
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nX-Session-API-Key: {impatient.key}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await asyncio.to_thread(reader.connect, (host, int(port)))
        masked_connect = b"\x81\x82\0\0\0\0" + b"40"
        await asyncio.to_thread(reader.sendall, head.encode() + masked_connect)
        await wait_for_connections(impatient, name, 1)
        await wait_for_connections(impatient, name, 0)


async def wait_for_connections(client: Client, name: str, count: int) -> None:
    async with asyncio.timeout(client.patience):
        found = await client.get(f"/api/conversations/{name}")
        while found.json()["num_connections"] != count:
            found = await client.get(f"/api/conversations/{name}")


async def test_a_client_that_does_not_read_is_let_go_of(impatient: Client) -> None:
    name = await make_large(impatient)
    path = await connect(impatient, conversation_id=name)
    assert (await impatient.post(path, data=b"40")).status == 200
    async with asyncio.timeout(impatient.patience):
        # Answers to pings keep a connection open for as long as it is known.
        answer = await impatient.post(path, data=b"3")
        while answer.status == 200:
            answer = await impatient.post(path, data=b"3")
    assert answer.status == 400
