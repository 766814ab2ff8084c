"""Events on their way to a client with an older SDK, and to all others, who get them as they are."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import WSMsgType

from agentsvc.http.gateway import websocket_frames as frames
from tests.http.gateway.steps import Box, session
from tests.http.test_sdk_versions import STARTS

EVENT = {"kind": "PauseEvent", "id": "a", "parent_id": "b"}
UNKNOWN = {"kind": "SecurityAnalysisEvent", "id": "c", "parent_id": "b"}
# Its spaces tell whether it was written anew.
PAGE = json.dumps({"items": [EVENT, UNKNOWN], "next_page_id": None}, indent=3).encode()
OLD_PAGE = {"items": [{"kind": "PauseEvent", "id": "a"}], "next_page_id": None}
SEARCH = "/api/conversations/8a0ef4b2/events/search"
SOCKET = "/sockets/events/8a0ef4b2"
HTTPX = {"User-Agent": "python-httpx/0.28.1", "Content-Type": "application/json"}
WEBSOCKETS = {"User-Agent": "Python/3.12 websockets/15.0.1"}


@pytest.fixture
def events_box(box: Box) -> Box:
    box.upstream.answers[SEARCH] = PAGE
    return box


@pytest.mark.parametrize(
    ("header", "value"),
    [("X-Session-API-Key", "{}"), ("Authorization", "Bearer {}"), ("X-Access-Token", "{}")],
)
async def test_a_key_that_says_which_sdk_its_client_has_gets_what_that_reads(
    header: str, value: str, events_box: Box
) -> None:
    box = events_box
    for path in (SEARCH, box.path(SEARCH, "agent")):
        marked = {header: value.format(f"{box.key}~sdk-1.30")}
        answer = await box.service.client_with(None).get(path, headers=marked)
        assert (answer.status, answer.json()) == (200, OLD_PAGE)
        seen = box.upstream.seen[-1]
        assert seen.all("X-Session-API-Key") == [box.key]
        assert "sdk-1.30" not in str(seen.headers)
    query = f"{SEARCH}?limit=3&session_api_key={box.key}%7Esdk-1.30&sort=x"
    answer = await box.service.client_with(None).get(query)
    assert answer.json() == OLD_PAGE
    assert box.upstream.seen[-1].raw_path == f"{SEARCH}?limit=3&sort=x"


@pytest.mark.parametrize("mark", ["", "~sdk-1.54", "~sdk-1.58", "~sdk-2.0"])
async def test_a_client_of_today_gets_the_bytes_as_they_are(mark: str, events_box: Box) -> None:
    for headers in (HTTPX, {}):
        client = events_box.service.client_with(events_box.key + mark)
        assert (await client.get(SEARCH, headers=headers)).body == PAGE
        other = await client.get("/api/conversations/8a0ef4b2", headers=headers)
        assert other.json() == {"ok": True}


async def test_who_starts_a_conversation_with_an_older_sdk_reads_on_as_that_and_others_do_not(
    events_box: Box,
) -> None:
    box = events_box
    url, key = box.service.url, {"X-Session-API-Key": box.key}
    jar = aiohttp.CookieJar(unsafe=True)
    start = STARTS["1.21.0"]
    async with aiohttp.ClientSession(url, headers=HTTPX | key, cookie_jar=jar) as old:
        async with old.post("/api/conversations", data=start) as started:
            assert "agentsvc_sdk=1.21" in started.headers["Set-Cookie"]
        async with old.get(SEARCH) as answer:
            assert await answer.json() == OLD_PAGE
        seen = box.upstream.seen[-1]
        assert seen.one("Cookie") is None
    async with aiohttp.ClientSession(url, headers=HTTPX | key) as new:
        async with new.post("/api/conversations", data=STARTS["1.58.2"]) as started:
            assert "Set-Cookie" not in started.headers
        async with new.get(SEARCH) as answer:
            assert await answer.read() == PAGE
    other = box.service.client_with(box.key)
    posted = await other.request("POST", "/api/conversations", data=start)
    assert "Set-Cookie" not in posted.headers


async def _hear(box: Box, path: str, *, first: str = "", agent: str = "") -> list[str]:
    """Return what a WebSocket hears before a last word."""
    heard = []
    headers = {"User-Agent": agent} if agent else {}
    async with (
        session() as client,
        client.ws_connect(box.service.url + path, headers=headers) as ws,
    ):
        if first:
            await ws.send_json({"type": "auth", "session_api_key": first})
        assert (await ws.receive(timeout=30)).data == "hello"
        for event in (EVENT, UNKNOWN, EVENT | {"value": "x" * 70_000}):
            await box.upstream.sockets[-1].send_str(json.dumps(event))
        await box.upstream.sockets[-1].send_bytes(b"bytes")
        await box.upstream.sockets[-1].send_str("over")
        while (message := await ws.receive(timeout=30)).data != "over":
            assert message.type in (WSMsgType.TEXT, WSMsgType.BINARY), message
            heard.append(message.data if message.type is WSMsgType.TEXT else "bytes")
        await ws.close()
    return heard


async def test_a_web_socket_of_an_older_client_hears_what_it_reads(box: Box) -> None:
    old = {"kind": "PauseEvent", "id": "a"}
    whole = [json.dumps(event) for event in (EVENT, UNKNOWN, EVENT | {"value": "x" * 70_000})]
    marked = f"{box.key}~sdk-1.30"
    in_query = f"{SOCKET}?session_api_key={box.key}"
    for heard in (
        await _hear(box, SOCKET, first=marked),
        await _hear(box, f"{SOCKET}?session_api_key={marked}"),
        await _hear(box, box.path(f"{SOCKET}?session_api_key={marked}", "agent")),
    ):
        assert heard[-1] == "bytes"
        assert [json.loads(one) for one in heard[:-1]] == [old, old | {"value": "x" * 70_000}]

    agent = WEBSOCKETS["User-Agent"]
    assert await _hear(box, in_query, agent=agent) == [*whole, "bytes"]
    client = box.service.client_with(box.key)
    await client.request("POST", "/api/conversations", data=STARTS["1.21.0"], headers=HTTPX)
    heard = await _hear(box, in_query, agent=agent)
    assert [json.loads(one) for one in heard[:-1]] == [old, old | {"value": "x" * 70_000}]
    # Newer versions show their key in the first message, and browsers are no SDK.
    assert await _hear(box, SOCKET, first=box.key, agent=agent) == [*whole, "bytes"]
    assert await _hear(box, in_query) == [*whole, "bytes"]


async def test_empty_parts_of_a_text_hold_up_nobody_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"\x01\0" + bytes(2) * 8000 + b"\x80\x01x"
    source, turns = asyncio.StreamReader(), 0
    source.feed_data(data)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(frames.ServerMessages(source).read())
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
    assert reading.result() == frames.ServerMessage(data, b"x", is_text=True)
    assert turns > 8000
    monkeypatch.setattr(frames, "_MESSAGE_BYTES", 10_000)
    source.feed_data(data)
    with pytest.raises(frames.InvalidFrame):
        await frames.ServerMessages(source).read()


async def test_what_a_client_with_an_older_sdk_is_given_says_so_too(
    box: Box, tmp_path: Path
) -> None:
    owner = box.service.client_with(f"{box.owner.key}~sdk-1.30")
    answer = await owner.get(f"/api/v1/sandboxes?id={box.id}")
    assert answer.json()[0]["session_api_key"] == f"{box.key}~sdk-1.30"
    assert (await box.owner.get(f"/api/v1/sandboxes?id={box.id}")).json()[0][
        "session_api_key"
    ] == box.key
    for url in answer.json()[0]["exposed_urls"]:
        assert "sdk-1.30" not in url["url"]
