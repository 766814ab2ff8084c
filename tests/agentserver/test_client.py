"""The client against servers that misbehave in ways the real one does not on demand."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentsvc.agentserver import client as agent_client
from agentsvc.agentserver import workspace
from agentsvc.agentserver.calls import MAX_ANSWER_BYTES
from agentsvc.agentserver.client import AgentClient, AgentServer
from agentsvc.base.errors import AgentRefused, AgentUnavailable, BadRequest
from agentsvc.base.values import Secret, monotonic

DEEP = b"[" * 100_000 + b"]" * 100_000
KEY = Secret("the-session-key")

type Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
type Serve = Callable[[Handler], Awaitable[AgentServer]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Return a function that starts a server with one handler and returns calls to it."""
    client = AgentClient(read_seconds=0.3, change_seconds=0.6)
    await client.open()
    await client.open()
    servers: list[TestServer] = []

    async def start(handler: Handler) -> AgentServer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        server = TestServer(app)
        await server.start_server(shutdown_timeout=0)
        servers.append(server)
        return client.at(f"{server.make_url('/')}", KEY)

    yield start
    await client.close()
    await client.close()
    for server in servers:
        await server.close()


async def test_a_call_ends_at_its_time_limit(serve: Serve) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    server = await serve(hang)
    begun = monotonic()
    with pytest.raises(AgentUnavailable, match=r"within 0\.3 seconds"):
        await server.find_conversation("a")
    with pytest.raises(AgentUnavailable, match=r"within 0\.6 seconds"):
        await server.run("a")
    with pytest.raises(AgentUnavailable, match=r"within 0\.1 seconds"):
        await server.send_message("a", [], run=True, time_limit=0.1)
    assert monotonic() - begun < 30


async def test_a_body_that_never_ends_is_cut_off(serve: Serve) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    with pytest.raises(AgentUnavailable, match="did not answer"):
        await (await serve(drip)).home()


async def flood(request: web.Request) -> web.StreamResponse:
    """Answer with more than is read."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(MAX_ANSWER_BYTES // 2**20 + 2):
        await response.write(bytes(2**20))
    return response


async def test_an_answer_beyond_the_bound_is_not_read(serve: Serve) -> None:
    with pytest.raises(AgentUnavailable) as caught:
        await (await serve(flood)).download("/x", time_limit=5)
    assert "more than" in caught.value.detail


async def test_a_page_of_events_beyond_the_bound_is_asked_for_in_parts(serve: Serve) -> None:
    limits: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        limits.append(int(request.query["limit"]))
        if "page_id" in request.query:
            return web.json_response({"items": [{"id": "b"}], "next_page_id": None})
        if limits[-1] > 25:
            return await flood(request)
        return web.json_response({"items": [{"id": "a"}], "next_page_id": "b"})

    pages = (await serve(answer)).event_pages("c", time_limit=5)
    assert [page async for page in pages] == [[b'{"id": "a"}'], [b'{"id": "b"}']]
    assert limits == [100, 50, 25, 50]


async def test_a_long_conversation_is_read_to_its_end() -> None:
    class Long(AgentServer):
        def __init__(self) -> None:
            self.asked = 0

        async def _call(self, *_args: Any, **_rest: Any) -> bytes:
            self.asked += 1
            page_id = f"e{self.asked}" if self.asked < 1000 else None
            return msgspec.json.encode({"items": [{}] * 100, "next_page_id": page_id})

    assert sum([len(page) async for page in Long().event_pages("c")]) == 100_000


@pytest.mark.parametrize(
    ("items", "ids", "asked"),
    [([{}], ["a"], 2), ([], ["a", "b"], 1), ([{}], ["a", "b"], 6), ([{}] * 101, ["a", "b"], 1)],
)
async def test_pages_without_end_are_refused(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, items: list[object], ids: list[str], asked: int
) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.query.get("page_id", ""))
        page_id = ids[len(seen) % len(ids)]
        return web.json_response({"items": items, "next_page_id": page_id})

    monkeypatch.setattr(agent_client, "_PAGES_MAX", 6)
    server = await serve(answer)
    with pytest.raises(AgentRefused, match="do not end"):
        async with asyncio.timeout(30):
            assert [page async for page in server.event_pages("c", time_limit=5)]
    assert len(seen) == asked


async def test_an_event_beyond_the_bound_ends_the_pages(serve: Serve) -> None:
    limits: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        limits.append(int(request.query["limit"]))
        return await flood(request)

    with pytest.raises(AgentUnavailable):
        await anext((await serve(answer)).event_pages("c", time_limit=5))
    assert limits == [100, 50, 25, 12, 6, 3, 1]


async def test_a_redirect_is_not_followed(serve: Serve) -> None:
    seen: list[str] = []

    async def redirect(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPFound("/elsewhere")

    with pytest.raises(AgentRefused):
        await (await serve(redirect)).home()
    assert seen == ["/api/file/home"]


async def test_cookies_are_not_kept(serve: Serve) -> None:
    seen: list[str] = []

    async def bake(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Cookie", ""))
        response = web.json_response({"home": "/home"})
        response.set_cookie("a", "b")
        return response

    server = await serve(bake)
    await server.home()
    await server.home()
    assert seen == ["", ""]


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"\xff", b'{"home": 3}'])
async def test_an_unknown_answer_is_refused(serve: Serve, body: bytes) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=body)

    with pytest.raises(AgentRefused, match="invalid response"):
        await (await serve(answer)).home()


@pytest.mark.parametrize("status", [200, 422])
@pytest.mark.parametrize(
    "body", [b'{"detail":[{"loc":5}]}', b'{"detail":%s}' % DEEP, b'[{"more":%s}]' % DEEP]
)
async def test_what_no_agent_server_answers_is_refused(
    serve: Serve, status: int, body: bytes
) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status, body=body)

    server = await serve(answer)
    assert await server.is_alive() == (status == 200)
    with pytest.raises(AgentRefused):
        await server.count_running()
    with pytest.raises(AgentRefused if status == 200 else BadRequest):
        await server.git_changes("/x")


async def test_ids_and_paths_are_quoted(serve: Serve) -> None:
    seen: list[str] = []

    async def note(request: web.Request) -> web.Response:
        seen.append(request.raw_path)
        return web.json_response({"id": "x"})

    server = await serve(note)
    await server.find_conversation("a/../b?c")
    await server.download("/a b&c")
    assert seen == [
        "/api/conversations/a%2F..%2Fb%3Fc",
        "/api/file/download?path=%2Fa+b%26c",
    ]


async def test_each_call_carries_the_key_and_the_log_does_not(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def refuse(request: web.Request) -> web.Response:
        seen.append(request.headers["X-Session-API-Key"])
        return web.json_response({"detail": f"no {seen[-1]}"}, status=400)

    with caplog.at_level(logging.DEBUG), pytest.raises(AgentRefused) as caught:
        await (await serve(refuse)).home()
    assert seen == [KEY.reveal()]
    assert KEY.reveal() not in caplog.text + caught.value.message + caught.value.detail


async def test_waiting_ends_when_the_server_comes_up(serve: Serve) -> None:
    asked: list[str] = []

    async def answer_late(request: web.Request) -> web.Response:
        asked.append(request.path)
        if len(asked) < 3:
            return web.json_response({"detail": "starting"}, status=503)
        return web.json_response({"home": "/home"})

    await (await serve(answer_late)).wait_ready(5)
    assert asked == ["/alive", "/alive", "/alive", "/api/file/home"]


async def test_waiting_for_a_frozen_server_ends_in_time(serve: Serve) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    server = await serve(hang)
    begun = monotonic()
    with pytest.raises(AgentUnavailable, match=r"within 0\.2 seconds"):
        await server.wait_ready(0.2)
    assert monotonic() - begun < 30


async def test_cancelling_a_call_cancels_it(serve: Serve) -> None:
    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    server = await serve(hang)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await server.home()


async def test_output_in_many_parts_is_read_page_by_page(serve: Serve) -> None:
    pages = {
        None: {"items": [{"order": 0, "stdout": "a"}], "next_page_id": "p2"},
        "p2": {"items": [{"order": 1, "stdout": "b", "exit_code": 0}], "next_page_id": None},
    }

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"id": "c1"})
        return web.json_response(pages[request.query.get("page_id")])

    result = await (await serve(answer)).run_command("x", time_limit=2)
    assert (result.stdout, result.exit_code) == ("ab", 0)


async def test_a_command_that_ended_by_itself_need_not_be_stopped(serve: Serve) -> None:
    async def answer(request: web.Request) -> web.Response:
        if request.path.endswith("/stop"):
            return web.json_response({"detail": "Not Found"}, status=404)
        if request.method == "POST":
            return web.json_response({"id": "c1"})
        return web.json_response({"items": [], "next_page_id": None})

    result = await (await serve(answer)).run_command("x", time_limit=0.1)
    assert result.timed_out
    assert result.exit_code == -1


@pytest.mark.parametrize("is_new", [False, True])
async def test_output_without_end_is_read_until_the_time_limit(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.method == "POST":
            return web.json_response({"id": "c1"})
        page_id = str(len(asked)) if is_new else "x"
        return web.json_response({"items": [], "next_page_id": page_id})

    monkeypatch.setattr(workspace, "_READ_ON_SECONDS", 0.2)
    server = await serve(answer)
    async with asyncio.timeout(30):
        result = await server.run_command("x", time_limit=0.2)
    assert (result.timed_out, result.exit_code) == (True, -1)
    assert asked.count("/api/bash/bash_commands/c1/stop") == 1
    assert is_new or len(asked) < 40


async def test_output_behind_empty_pages_is_read(serve: Serve) -> None:
    # Agent servers of before take out what was read already only when they have cut the pages.
    pages = {
        None: {"items": [], "next_page_id": "p2"},
        "p2": {"items": [{"order": 0, "stdout": "a", "exit_code": 0}], "next_page_id": None},
    }

    async def answer(request: web.Request) -> web.Response:
        if request.method == "POST":
            return web.json_response({"id": "c1"})
        return web.json_response(pages[request.query.get("page_id")])

    result = await (await serve(answer)).run_command("x", time_limit=2)
    assert (result.stdout, result.exit_code) == ("a", 0)


async def test_a_fault_while_starting_is_not_worth_a_second_try(serve: Serve) -> None:
    async def fail(_request: web.Request) -> web.Response:
        return web.json_response({"exception": "KeyError: no such tool, key sk-1"}, status=500)

    server = await serve(fail)
    with pytest.raises(AgentRefused, match="no such tool") as caught:
        await server.start_conversation({"a": 1}, hide=[Secret("sk-1")])
    assert "sk-1" not in caught.value.message
    with pytest.raises(AgentUnavailable):
        await server.run("a")


async def test_a_bad_address_is_unavailable() -> None:
    client = AgentClient()
    await client.open()
    try:
        for url in ("http://127.0.0.1:1", "http://", "nonsense"):
            with pytest.raises(AgentUnavailable):
                await client.at(url, KEY).home()
    finally:
        await client.close()


async def test_a_websocket_that_is_sent_elsewhere_asks_nothing_there(serve: Serve) -> None:
    asked: list[str] = []

    async def note(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    elsewhere = await serve(note)

    async def send_on(_request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": elsewhere.url.rstrip("/") + "/inner"})

    server = await serve(send_on)
    with pytest.raises(AgentUnavailable, match="does not answer"):
        async for _ in server.subscribe("a"):
            pass
    assert asked == []
