"""Whose key opens a stream, signs of life on a quiet one, and how it ends."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.http.v1.streaming import events, feeder
from tests.service import Client, Service
from tests.streams import CHANGES, Lines, Socket, Told, open_lines, open_socket, path_of
from tests.troubles import eventually

OPENERS = pytest.mark.parametrize("opener", [open_lines, open_socket])


@pytest.fixture
async def lively(client: Client, service: Service) -> Client:
    """Return the client of a server whose streams show often that they are alive."""
    quick = msgspec.structs.replace(service.config.events, heartbeat_seconds=0.1)
    service.config = msgspec.structs.replace(service.config, events=quick)
    await service.restart()
    return client


@OPENERS
async def test_a_browser_sends_its_key_in_the_query_and_it_is_in_no_log(
    client: Client, service: Service, caplog: pytest.LogCaptureFixture, opener: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    feed = await feeder(client, service)
    anyone = service.client_with(None)
    for path in (path_of(feed.conversation_id), CHANGES):
        async with opener(anyone, f"{path}?session_api_key={client.key}") as stream:
            assert await stream.until("ready")
        assert (await anyone.get(f"{path}?session_api_key=wrong")).status == 401
        assert (await anyone.get(f"{path}?session_api_key=%F0%9F%98%80")).status == 401
        assert (await anyone.get(path)).status == 401
    assert client.key
    assert client.key not in "\n".join(str(vars(record)) for record in caplog.records)


async def test_a_key_in_the_query_opens_nothing_but_streams(
    client: Client, service: Service
) -> None:
    anyone = service.client_with(None)
    answer = await anyone.get(f"/api/v1/sandboxes/search?session_api_key={client.key}")
    assert answer.status == 401


async def test_a_sandboxs_key_opens_no_stream(client: Client, service: Service) -> None:
    feed = await feeder(client, service)
    assert (await feed.sandbox.get(path_of(feed.conversation_id))).status == 401
    assert (await feed.sandbox.get(CHANGES)).status == 401


@OPENERS
@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_revoked_key_ends_its_streams(
    lively: Client, service: Service, opener: Any, *, is_busy: bool
) -> None:
    feed = await feeder(lively, service)
    made = (await lively.post("/api/keys", json={"name": "short"})).json()
    holder = service.client_with(made["key"])
    streams: list[AbstractAsyncContextManager[Lines | Socket]] = [
        opener(holder, path_of(feed.conversation_id)),
        opener(holder, CHANGES),
    ]
    async with streams[0] as one, streams[1] as other, asyncio.TaskGroup() as group:
        sending = group.create_task(_send_for_ever(feed.send) if is_busy else asyncio.sleep(0))
        for stream in (one, other):
            await stream.until("ready")
        assert (await lively.delete(f"/api/keys/{made['id']}")).status == 200
        for stream in (one, other):
            rest = await stream.rest()
            if isinstance(stream, Lines):
                assert rest[-1] == Told(type="end", data={"reason": "not_authenticated"})
            else:
                assert stream.end == (4001, "not_authenticated")
        sending.cancel()


async def _send_for_ever(send: Any) -> None:
    first = 1
    while True:
        await send(events(1, first=first))
        first += 1


async def test_a_quiet_stream_of_lines_has_comments(lively: Client) -> None:
    async with open_lines(lively, CHANGES) as stream:
        await stream.until("ready")
        async with asyncio.timeout(lively.patience):
            while await stream.response.content.readline() != b":\n":
                pass


async def test_a_client_that_answers_pings_is_kept(lively: Client, service: Service) -> None:
    feed = await feeder(lively, service)
    path = path_of(feed.conversation_id)
    async with open_socket(lively, path, autoping=False) as stream:
        await stream.until("ready")
        for _ in range(8):
            message = await stream.socket.receive()
            assert message.type is aiohttp.WSMsgType.PING
            await stream.socket.pong(message.data)
        await stream.socket.ping(b"there?")
        while (message := await stream.socket.receive()).type is aiohttp.WSMsgType.PING:
            await stream.socket.pong(message.data)
        assert (message.type, message.data) == (aiohttp.WSMsgType.PONG, b"there?")


async def test_a_client_that_answers_no_ping_is_let_go(lively: Client) -> None:
    async with open_socket(lively, CHANGES, autoping=False) as stream:
        await stream.until("ready")
        pings = 0
        while (await stream.socket.receive()).type is aiohttp.WSMsgType.PING:
            pings += 1
        assert pings == 3
        assert stream.socket.close_code != 1000


@OPENERS
async def test_a_client_that_goes_is_forgotten(
    client: Client, service: Service, opener: Any
) -> None:
    feed = await feeder(client, service)
    listening = service.listeners()
    async with opener(client, path_of(feed.conversation_id)) as stream:
        await stream.until("ready")
        assert service.listeners() == listening + 1
    await eventually(lambda: service.listeners() == listening)


async def test_what_a_client_says_is_passed_over(client: Client, service: Service) -> None:
    feed = await feeder(client, service)
    async with open_socket(client, path_of(feed.conversation_id)) as stream:
        await stream.until("ready")
        await stream.socket.send_str("hello")
        await stream.socket.send_bytes(b"hello")
        await feed.send(events(1))
        assert [one.type for one in await stream.until("event")] == ["event"]


async def test_a_client_that_says_much_is_let_go(client: Client) -> None:
    async with open_socket(client, CHANGES) as stream:
        await stream.until("ready")
        await stream.socket.send_str("x" * 5000)
        assert await stream.rest() == []
        assert stream.socket.close_code not in (None, 1000)
