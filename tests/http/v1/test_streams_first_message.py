"""A key as the first message of a stream's WebSocket, from clients that send none with it."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from aiohttp import WSServerHandshakeError
from yarl import URL

from agentsvc.http.keys import MEASURES
from tests.http.gateway.steps import until
from tests.http.v1.streaming import events, feeder
from tests.service import Client, Service
from tests.streams import CHANGES, open_socket, path_of


async def configure(service: Service, **server: Any) -> None:
    section = msgspec.structs.replace(service.config.server, **server)
    service.config = msgspec.structs.replace(service.config, server=section)
    await service.restart()


def auth(key: Any, kind: str = "auth") -> str:
    return json.dumps({"type": kind, "session_api_key": key})


async def test_the_first_message_has_the_key_and_it_is_in_no_log(
    client: Client, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    feed = await feeder(client, service)
    await feed.send(events(2))
    anyone = service.client_with(None)
    for path in (path_of(feed.conversation_id), CHANGES):
        async with open_socket(anyone, path) as stream:
            await stream.socket.ping()
            await stream.socket.send_str(auth(client.key))
            assert (await stream.until("ready"))[-1].type == "ready"
    assert client.key
    assert client.key not in "\n".join(str(vars(record)) for record in caplog.records)


async def test_a_stream_opened_so_goes_on_behind_an_event(client: Client, service: Service) -> None:
    feed = await feeder(client, service)
    await feed.send(events(3))
    last = len(await client.events(feed.conversation_id)) - 1
    path = path_of(feed.conversation_id, last - 1)
    async with open_socket(service.client_with(None), path) as stream:
        await stream.socket.send_str(auth(client.key))
        told = await stream.until("ready")
    assert [one.id for one in told] == [str(last), None]


@pytest.mark.parametrize(
    "message",
    [
        auth("no-such-key"),
        auth(""),
        auth("schlüssel"),
        auth(7),
        auth("x", "login"),
        "{}",
        "[",
        '{"more":' + "[" * 4000,
        "\ud7ff",
    ],
)
async def test_a_first_message_without_a_good_key_ends_the_stream(
    service: Service, message: str
) -> None:
    async with open_socket(service.client_with(None), CHANGES) as stream:
        await stream.socket.send_str(message)
        assert await stream.rest() == []
        assert stream.end == (4001, "not_authenticated")


async def test_bytes_and_long_texts_end_the_stream(client: Client, service: Service) -> None:
    anyone = service.client_with(None)
    async with open_socket(anyone, CHANGES) as stream:
        await stream.socket.send_bytes(auth(client.key).encode())
        assert await stream.rest() == []
        assert stream.end == (4001, "not_authenticated")
    async with open_socket(anyone, CHANGES) as stream:
        await stream.socket.send_str(auth("x" * 5000))
        assert await stream.rest() == []


async def test_a_sandboxs_key_as_first_message_opens_no_stream(
    client: Client, service: Service
) -> None:
    feed = await feeder(client, service)
    async with open_socket(service.client_with(None), path_of(feed.conversation_id)) as stream:
        await stream.socket.send_str(auth(feed.sandbox.key))
        await stream.rest()
        assert stream.end == (4001, "not_authenticated")


async def test_what_is_not_there_ends_the_stream_after_the_key(
    client: Client, service: Service
) -> None:
    path = path_of("0" * 32)
    async with open_socket(service.client_with(None), path) as stream:
        await stream.socket.send_str(auth(client.key))
        await stream.rest()
        assert stream.end == (4004, "not_found")


async def test_who_says_nothing_is_let_go(service: Service) -> None:
    await configure(service, first_message_seconds=0.2)
    async with open_socket(service.client_with(None), CHANGES) as stream:
        assert await stream.rest() == []
        assert stream.end == (4001, "not_authenticated")


async def test_the_oldest_that_waits_for_its_key_makes_room(
    client: Client, service: Service
) -> None:
    await configure(service, max_connections_per_address=2)
    anyone = service.client_with(None)
    async with (
        open_socket(anyone, CHANGES) as first,
        open_socket(anyone, CHANGES) as second,
        open_socket(anyone, CHANGES) as third,
    ):
        assert await first.rest() == []
        # Who has said a key is none of those that wait.
        for one in (second, third):
            await one.socket.send_str(auth(client.key))
            await one.until("ready")
        async with open_socket(anyone, CHANGES), open_socket(anyone, CHANGES):
            assert not second.socket.closed
            assert not third.socket.closed


async def test_a_user_leaves_connections_to_others(client: Client, service: Service) -> None:
    await configure(service, max_connections=8)
    anyone, user = service.client_with(None), await service.make_client("busy")
    async with AsyncExitStack() as opened:
        for _ in range(6):
            one = await opened.enter_async_context(open_socket(anyone, CHANGES))
            await one.socket.send_str(auth(user.key))
            await one.until("ready")
        async with open_socket(anyone, CHANGES) as more:
            await more.socket.send_str(auth(user.key))
            assert await more.rest() == []
            assert more.end == (1013, "too_many_requests")
        assert (await user.get("/api/v1/users/me")).status == 429
        assert (await client.get("/api/v1/users/me")).status == 200


async def test_who_leaves_before_a_key_is_shown_is_no_fault_of_the_server(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    address = URL(service.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        f"GET {CHANGES} HTTP/1.1\r\nHost: {address.authority}\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
    )
    assert b" 101 " in await reader.readline()
    writer.transport.abort()
    await until(lambda: service.app[MEASURES].running == 0)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_waiting_for_a_key_does_not_hold_up_a_stop(service: Service) -> None:
    await configure(service, first_message_seconds=3600)
    async with open_socket(service.client_with(None), CHANGES) as stream:
        stopping = asyncio.gather(service.stop())
        await stream.rest()
        assert stream.end[0] == 1001
        await stopping


async def test_a_request_with_a_bad_key_is_refused_at_once(service: Service) -> None:
    for client, query in ((service.client_with("wrong"), ""), (service.client_with(None), "wrong")):
        with pytest.raises(WSServerHandshakeError) as caught:
            await open_socket(client, f"{CHANGES}?session_api_key={query}").__aenter__()
        assert caught.value.status == 401
