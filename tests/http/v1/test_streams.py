"""The stream of a conversation's events: each once, in order, wherever it begins."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from agentsvc.accounts.keys import Role
from tests.http.v1.streaming import Feeder, deltas, events, feeder
from tests.service import Client, Service
from tests.streams import Stream, Told, open_lines, open_socket, path_of

UNKNOWN_ID = "0" * 32
KINDS = ["lines", "socket"]


@asynccontextmanager
async def follow(
    kind: str, client: Client, conversation_id: str, after: str | None = None
) -> AsyncIterator[Stream]:
    """Open a stream behind an event; a reader of lines says so in a header."""
    if kind == "lines":
        async with open_lines(client, path_of(conversation_id), last_id=after) as lines:
            yield lines
    else:
        async with open_socket(client, path_of(conversation_id, after)) as socket:
            yield socket


def ids(told: list[Told]) -> list[str]:
    return [str(one.id) for one in told if one.type == "event"]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last + 1)]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_stored_comes_first_and_then_what_is_new(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    await feed.send(events(3))
    stored = await client.events(feed.conversation_id)
    async with follow(kind, client, feed.conversation_id) as stream:
        told = await stream.until("ready")
        assert ids(told) == numbers(0, len(stored) - 1)
        assert sorted(str(one.data) for one in told[:-1]) == sorted(map(str, stored))
        new = events(2, first=10)
        await feed.send(new)
        assert [(await stream.read()) for _ in new] == [
            Told(type="event", id=str(len(stored) + i), data=event) for i, event in enumerate(new)
        ]


async def test_a_stream_goes_on_behind_any_event(client: Client, service: Service) -> None:
    feed = await feeder(client, service)
    await feed.send(events(40))
    async with follow("lines", client, feed.conversation_id) as stream:
        whole = await stream.until("ready")
    assert ids(whole) == numbers(0, len(whole) - 2)
    for i, one in enumerate(whole[:-1]):
        async with follow(KINDS[i % 2], client, feed.conversation_id, one.id) as stream:
            assert await stream.until("ready") == whole[i + 1 :]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_begins_with_so_many_of_the_last_events(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    await feed.send(events(10))
    async with follow("lines", client, feed.conversation_id) as stream:
        whole = await stream.until("ready")
    opened = open_lines if kind == "lines" else open_socket
    for latest, expected in ((3, whole[-4:]), (0, whole[-1:]), (1000, whole)):
        async with opened(client, f"{path_of(feed.conversation_id)}?latest={latest}") as stream:
            assert await stream.until("ready") == expected
    async with opened(client, f"{path_of(feed.conversation_id)}?latest=1&after=5") as stream:
        assert ids(await stream.until("ready")) == ids(whole[6:])
    answer = await client.get(f"{path_of(feed.conversation_id)}?latest=x")
    assert answer.status == 422


async def test_nothing_is_lost_doubled_or_moved_by_300_reconnects_while_3000_events_come(
    client: Client, service: Service
) -> None:
    feed = await feeder(client, service)
    async with asyncio.TaskGroup() as group:
        for writer in range(3):
            group.create_task(_write(feed, first=1 + writer * 1000))
        told: list[Told] = []
        for i in range(300):
            last = ids(told)[-1] if told else None
            async with follow(KINDS[i % 2], client, feed.conversation_id, last) as stream:
                new: list[Told] = []
                while len(new) < 10:
                    one = await stream.read()
                    assert one is not None
                    new += [one] if one.type == "event" else []
                told += new
    async with follow("lines", client, feed.conversation_id, ids(told)[-1]) as stream:
        told += (await stream.until("ready"))[:-1]
    assert ids(told) == numbers(0, len(told) - 1)
    names = [one.data["id"] for one in told]
    assert len(set(names)) == len(names)
    assert {event["id"] for event in events(3000)} <= set(names)


async def _write(feed: Feeder, *, first: int) -> None:
    for begin in range(first, first + 1000, 20):
        await feed.send(events(20, first=begin))


@pytest.mark.parametrize("kind", KINDS)
async def test_deltas_are_passed_on_between_the_events_and_not_stored(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    async with follow(kind, client, feed.conversation_id) as stream:
        await stream.until("ready")
        first, second = events(2)
        [before, between] = deltas(2)
        await feed.send([before, first, between, second])
        told = [await stream.read() for _ in range(4)]
    assert [one and one.type for one in told] == ["delta", "event", "delta", "event"]
    assert [one and one.data for one in told] == [before, first, between, second]
    async with follow(kind, client, feed.conversation_id) as stream:
        assert "delta" not in {one.type for one in await stream.until("ready")}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_goes_on_after_a_restart_with_no_sandbox_left(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    await feed.send(events(5))
    async with follow(kind, client, feed.conversation_id) as stream:
        told = await stream.until("ready")
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(service.stop())
            assert await stream.rest() == []
            await stopping
        if kind == "socket":
            assert stream.end[0] == 1001  # type: ignore[attr-defined]  # sockets have it
    await service.start()
    found = await client.conversation(feed.conversation_id)
    await client.delete(f"/api/v1/sandboxes/{found['sandbox_id']}")
    async with follow(kind, client, feed.conversation_id, told[3].id) as stream:
        again = await stream.until("ready")
    assert ids(again)[: len(ids(told)) - 4] == ids(told)[4:]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_ends_with_its_conversation(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    async with follow(kind, client, feed.conversation_id) as stream:
        await stream.until("ready")
        await client.delete(f"/api/v1/app-conversations/{feed.conversation_id}")
        rest = await stream.rest()
        if kind == "lines":
            assert rest[-1] == Told(type="end", data={"reason": "deleted"})
        else:
            assert stream.end == (4004, "deleted")  # type: ignore[attr-defined]  # sockets have it


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reader_that_is_ahead_of_the_store_begins_again_at_its_end(
    client: Client, service: Service, kind: str
) -> None:
    feed = await feeder(client, service)
    await feed.send(events(1))
    async with follow(kind, client, feed.conversation_id) as stream:
        last = ids(await stream.until("ready"))[-1]
    async with follow(kind, client, feed.conversation_id, str(2**63 - 1)) as stream:
        rest = await stream.rest()
        if kind == "lines":
            data = {"last_event_id": int(last)}
            assert rest == [Told(type="resync", id=last, data=data)]
        else:
            assert (rest, stream.end) == ([], (4008, last))  # type: ignore[attr-defined]  # see above


async def test_line_breaks_in_an_event_do_not_break_it(client: Client, service: Service) -> None:
    feed = await feeder(client, service)
    [event] = events(1, text="one\ntwo\r\nthree\u2028four")
    body = json.dumps([event], indent=1).replace("\n", "\r\n").encode()
    headers = {"Content-Type": "application/json"}
    await feed.sandbox.post(feed.path, data=body, headers=headers)
    for kind in KINDS:
        async with follow(kind, client, feed.conversation_id) as stream:
            assert (await stream.until("ready"))[-2].data == event


async def test_the_header_of_a_browser_wins_over_the_query(
    client: Client, service: Service
) -> None:
    feed = await feeder(client, service)
    await feed.send(events(5))
    path = path_of(feed.conversation_id, 0)
    async with open_lines(client, path, last_id="2") as stream:
        assert ids(await stream.until("ready"))[0] == "3"


@pytest.mark.parametrize("after", ["", "zzz", "-1", "1.5", "null", "9" * 19, "9" * 30, "%00"])
async def test_what_is_no_number_of_an_event_is_refused(client: Client, after: str) -> None:
    conversation_id = await client.start_conversation(None)
    answer = await client.get(path_of(conversation_id, after))
    assert (answer.status, answer.json()["code"]) == (422, "invalid_request")
    if after not in ("", "%00"):
        headers = {"Last-Event-ID": after}
        answer = await client.get(path_of(conversation_id), headers=headers)
        assert answer.json()["detail"][0]["loc"] == ["header", "Last-Event-ID"]


async def test_another_users_conversation_and_an_unknown_one_are_not_found(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    other = await service.make_client("somebody else", Role.MEMBER)
    assert (await other.get(path_of(conversation_id))).status == 404
    assert (await client.get(path_of(UNKNOWN_ID))).status == 404
    with pytest.raises(aiohttp.WSServerHandshakeError, match="404"):
        async with open_socket(other, path_of(conversation_id)):
            pass


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-WebSocket-Version": "1"},
        {"Sec-WebSocket-Key": "short"},
        {"Connection": "close"},
        {"Sec-WebSocket-Protocol": "key"},
    ],
)
async def test_a_handshake_that_does_not_fit_is_refused(
    client: Client, headers: dict[str, str]
) -> None:
    conversation_id = await client.start_conversation(None)
    good: dict[str, Any] = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    answer = await client.get(path_of(conversation_id), headers=good | headers)
    assert (answer.status, answer.json()["code"]) == (400, "bad_request")
