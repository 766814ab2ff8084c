"""WebSockets pass as they are, both ways, and end as they were ended."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from agentsvc.accounts.keys import Role
from agentsvc.config.schema import GatewayConfig
from agentsvc.testing.backend import FakeWorld
from tests.http.gateway.conftest import StartGate
from tests.http.gateway.steps import LONG_SECONDS, Box, Wire, head, session, until, until_still
from tests.http.gateway.upstream import Upstream
from tests.http.gateway.wire_upstream import wired

HANDSHAKE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
SAMPLE_PROOF = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
SOCKET = "/sockets/events/1"


async def _next(socket: aiohttp.ClientWebSocketResponse) -> aiohttp.WSMessage:
    return await socket.receive(timeout=LONG_SECONDS)


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
async def test_texts_and_bytes_pass_both_ways(port: str, box: Box) -> None:
    async with session(box.key) as client, client.ws_connect(box.url("/ws", port)) as socket:
        assert (await _next(socket)).data == "hello"
        await socket.send_str("grüße")
        assert (await _next(socket)).data == "GRÜSSE"
        await socket.send_bytes(bytes(range(256)))
        assert (await _next(socket)).data == bytes(range(256))[::-1]


async def test_large_messages_pass(box: Box) -> None:
    data = bytes(range(256)) * 32 * 1024
    async with (
        session(box.key) as client,
        client.ws_connect(box.url("/ws"), max_msg_size=0) as socket,
    ):
        await _next(socket)
        await socket.send_bytes(data)
        assert (await _next(socket)).data == data[::-1]


async def test_a_protocol_and_extensions_are_agreed_with_the_sandbox(box: Box) -> None:
    async with (
        session(box.key) as client,
        client.ws_connect(box.url("/ws"), protocols=("other", "chat"), compress=15) as socket,
    ):
        assert socket.protocol == "chat"
        assert socket.compress == 15
        assert (await _next(socket)).data == "hello"
        await socket.send_str("x" * 100_000)
        assert (await _next(socket)).data == "X" * 100_000


async def test_pings_and_pongs_pass_both_ways(box: Box) -> None:
    async with (
        session(box.key) as client,
        client.ws_connect(box.url("/ws"), autoping=False) as socket,
    ):
        await _next(socket)
        await socket.ping(b"from the client")
        pong = await _next(socket)
        assert (pong.type, bytes(pong.data)) == (WSMsgType.PONG, b"from the client")
        await socket.send_str("ping me")
        ping = await _next(socket)
        assert (ping.type, bytes(ping.data)) == (WSMsgType.PING, b"from the sandbox")
        await socket.pong(ping.data)
        assert (await _next(socket)).data == "ponged from the sandbox"


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4001, 4999])
async def test_the_sandbox_closes_with_its_code_and_reason(code: int, box: Box) -> None:
    async with (
        session(box.key) as client,
        client.ws_connect(box.url("/ws"), autoclose=False) as socket,
    ):
        await _next(socket)
        await socket.send_str(f"close {code} because of this")
        message = await _next(socket)
        assert message.type is WSMsgType.CLOSE
        assert (message.data, message.extra) == (code, "because of this")


@pytest.mark.parametrize("code", [1000, 3000, 4321])
async def test_the_client_closes_with_its_code(code: int, box: Box) -> None:
    async with session(box.key) as client, client.ws_connect(box.url("/ws")) as socket:
        await _next(socket)
        await socket.close(code=code, message=b"bye")
    async with asyncio.timeout(LONG_SECONDS):
        assert await box.upstream.socket_ends.get() == code


async def test_a_client_that_goes_ends_the_socket_in_the_sandbox(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/ws"), f"X-Session-API-Key: {box.key}", *HANDSHAKE))
    status, headers = await wire.read_head()
    assert status == 101
    assert headers["sec-websocket-accept"] == SAMPLE_PROOF
    wire.writer.transport.abort()
    async with asyncio.timeout(LONG_SECONDS):
        assert await box.upstream.socket_ends.get() == 1006


async def test_a_sandbox_that_goes_ends_the_clients_socket(box: Box) -> None:
    async with session(box.key) as client, client.ws_connect(box.url("/ws")) as socket:
        await _next(socket)
        await box.upstream.stop()
        message = await _next(socket)
        assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED)


async def test_a_client_that_does_not_read_stops_the_sandbox(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/flood"), f"X-Session-API-Key: {box.key}", *HANDSHAKE))
    await wire.read_head()
    await until_still(box.upstream)
    wire.writer.transport.abort()
    await until(box.upstream.lost.is_set)


async def test_a_sandbox_that_refuses_a_socket_is_heard(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/no-ws"), f"X-Session-API-Key: {box.key}", *HANDSHAKE))
    status, headers = await wire.read_head()
    assert (status, headers["x-why"]) == (403, "because")
    assert await wire.read(int(headers["content-length"])) == b"not for you"
    await wire.close()


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1000 + b"HTTP/1.1 403 No\r\n\r\n", 403),
        (b"HTTP/1.1 103 Early Hints\r\n\r\n" * 5000 + b"HTTP/1.1 403 No\r\n\r\n", 502),
        (b"HTTP/1.1 403 No\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 403),
    ],
)
async def test_an_answer_to_a_handshake_has_an_end(
    answer: bytes, status: int, box: Box, world: FakeWorld
) -> None:
    async with wired(box, world) as (place, upstream):
        upstream.answers = [answer]
        wire = await Wire.open(place.service)
        wire.send(head("GET", place.path("/ws"), f"X-Session-API-Key: {place.key}", *HANDSHAKE))
        assert (await wire.read_head())[0] == status
        await wire.close()


async def test_a_socket_to_a_port_where_nothing_answers_is_refused(box: Box) -> None:
    await box.upstream.stop()
    async with session(box.key) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect(box.url("/ws"))
    assert caught.value.status == 502


@pytest.mark.parametrize(
    "lines",
    [
        ("Connection: Upgrade", "Upgrade: websocket"),
        (*HANDSHAKE[:3], "Sec-WebSocket-Key: short"),
        (*HANDSHAKE[:2], "Sec-WebSocket-Version: 8", HANDSHAKE[3]),
        (*HANDSHAKE, "Content-Length: 3"),
    ],
)
async def test_a_bad_handshake_is_refused(lines: tuple[str, ...], box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path("/ws"), f"X-Session-API-Key: {box.key}", *lines) + b"abc")
    status, _ = await wire.read_head()
    await wire.close()
    assert status == 400
    assert box.upstream.sockets == []


# The key


def _auth(key: Any) -> str:
    return json.dumps({"type": "auth", "session_api_key": key})


@pytest.mark.parametrize("at_root", [False, True])
async def test_the_first_message_may_have_the_key(at_root: bool, box: Box) -> None:
    url = box.service.url + SOCKET if at_root else box.url(SOCKET, "agent")
    async with session() as client, client.ws_connect(url) as socket:
        await socket.send_str(_auth(box.key))
        assert (await _next(socket)).data == "hello"
        await socket.send_str("words")
        assert (await _next(socket)).data == "WORDS"
    assert box.upstream.seen[-1].one("X-Session-API-Key") == box.key


async def test_the_first_message_may_have_the_users_key(box: Box) -> None:
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await socket.send_str(_auth(box.owner.key))
        assert (await _next(socket)).data == "hello"
    assert box.upstream.seen[-1].one("X-Session-API-Key") == box.key


@pytest.mark.parametrize(
    "message",
    [
        _auth("no-such-key"),
        _auth(""),
        _auth("schlüssel"),
        _auth(7),
        "{}",
        "no JSON",
        "x" * 5000,
        '{"x":' + "[" * 4000,
    ],
)
async def test_a_first_message_without_a_good_key_ends_the_socket(message: str, box: Box) -> None:
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await socket.send_str(message)
        ended = await _next(socket)
        assert (ended.type, ended.data) == (WSMsgType.CLOSE, 4001)
    assert box.upstream.sockets == []


async def test_a_first_message_of_bytes_ends_the_socket(box: Box) -> None:
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await socket.send_bytes(_auth(box.key).encode())
        assert (await _next(socket)).data == 4001


async def test_the_key_of_another_sandbox_ends_the_socket(box: Box) -> None:
    other = await Box.start(box.service, box.upstream, box.owner)
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await socket.send_str(_auth(other.key))
        assert (await _next(socket)).data == 4004


async def test_a_paused_sandbox_ends_the_socket_with_the_remedy(box: Box) -> None:
    await box.owner.post(f"/api/v1/sandboxes/{box.id}/pause")
    await box.owner.wait_for_sandbox(box.id, "PAUSED")
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await socket.send_str(_auth(box.key))
        ended = await _next(socket)
        assert ended.data == 1013
        assert "/resume" in str(ended.extra)


async def test_a_refusal_after_the_first_message_ends_the_socket(box: Box) -> None:
    url = box.url("/sockets/refused", "agent")
    async with session() as client, client.ws_connect(url) as socket:
        await socket.send_str(_auth(box.key))
        assert (await _next(socket)).data == 1013


async def test_a_client_that_goes_before_its_first_message_leaves_nothing(box: Box) -> None:
    wire = await Wire.open(box.service)
    wire.send(head("GET", box.path(SOCKET, "agent"), *HANDSHAKE))
    assert (await wire.read_head())[0] == 101
    await wire.close()
    # The server stops at once, as nothing waits any more.
    await box.service.stop()
    assert box.upstream.sockets == []


async def test_an_open_socket_does_not_hold_up_a_stop(box: Box) -> None:
    async with session(box.key) as client, client.ws_connect(box.url("/ws")) as socket:
        await _next(socket)
        stopping = asyncio.gather(box.service.stop())
        message = await _next(socket)
        assert message.type in (WSMsgType.CLOSED, WSMsgType.ERROR)
        await stopping
    async with asyncio.timeout(LONG_SECONDS):
        assert await box.upstream.socket_ends.get() == 1006


@pytest.mark.parametrize("port", ["agent", "vscode", "worker_1"])
@pytest.mark.parametrize("is_owners", [True, False])
async def test_the_first_message_opens_every_port(port: str, box: Box, *, is_owners: bool) -> None:
    key = box.owner.key if is_owners else box.key
    async with session() as client, client.ws_connect(box.url("/ws", port)) as socket:
        await socket.send_str(_auth(key))
        assert (await _next(socket)).data == "hello"
        await socket.send_str("words")
        assert (await _next(socket)).data == "WORDS"
    seen = box.upstream.seen[-1]
    assert not any(str(box.owner.key) in value for _, value in seen.headers)


async def test_a_socket_that_has_to_agree_on_a_protocol_shows_its_key_at_once(box: Box) -> None:
    async with session() as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect(box.url("/ws"), protocols=("chat",))
        assert caught.value.status == 401


async def test_who_says_no_key_in_time_is_let_go(start_gate: StartGate, upstream: Upstream) -> None:
    gate = await start_gate(GatewayConfig(), first_message_seconds=0.2)
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        assert (await _next(socket)).data == 4001


async def test_waiting_for_a_key_does_not_hold_up_a_stop(
    start_gate: StartGate, upstream: Upstream
) -> None:
    gate = await start_gate(GatewayConfig(), first_message_seconds=3600)
    box = await Box.start(gate, upstream, await gate.make_client("owner", Role.MEMBER))
    async with session() as client, client.ws_connect(box.url(SOCKET, "agent")) as socket:
        await gate.stop()
        assert (await _next(socket)).type in (WSMsgType.CLOSED, WSMsgType.ERROR)
