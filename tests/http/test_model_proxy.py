"""Models that sandboxes ask through the server: with a token in place of the key, within a budget."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import ModelUnavailable
from agentsvc.base.values import Secret
from agentsvc.config.conversations import ModelsConfig
from agentsvc.conversations.model_usage import find_usage, note_call, open_calls
from agentsvc.http.keys import DATABASE, MEASURES
from agentsvc.models.hosts import host_of_url
from agentsvc.models.proxy import LARGEST_ANSWER_BYTES, ModelProxy
from agentsvc.models.wire import CallUsage, Upstream
from agentsvc.storage.database import Transaction
from agentsvc.testing.llm import Playbook, ScriptedModel, say
from tests.conftest import FAST
from tests.fake_agent import FakeAgent
from tests.plugin_loading import load_plugins
from tests.service import Answer, Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

KEY = "sk-the-real-key-0123456789"
TOOL = {"type": "function", "function": {"name": "finish", "parameters": {}}}
ASK = {"messages": [{"role": "user", "content": "hello"}], "tools": [TOOL]}
PRICES = {"input_cost_per_token": 0.01, "output_cost_per_token": 0.02}
STARTS = "/api/v1/app-conversations"


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    reply = say("Hello!", prompt_tokens=10, completion_tokens=5)
    async with ScriptedModel(script=[reply], key=Secret(KEY)) as model:
        yield model


@pytest.fixture
async def service(
    tmp_path: Path, fake_world: TroubledWorld, model: ScriptedModel
) -> AsyncIterator[Service]:
    config = msgspec.structs.replace(
        FAST,
        models=ModelsConfig(),
        sandboxes=msgspec.structs.replace(FAST.sandboxes, model_hosts=(host_of_url(model.url),)),
    )
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


async def settle(client: Client, model: ScriptedModel, **fields: Any) -> None:
    """Have conversations use the model, whose tokens have prices."""
    llm = {"model": "openai/scripted", "api_key": KEY, "base_url": model.url, **PRICES}
    agent = {"llm": llm}
    answer = await client.post("/api/v1/settings", json={"agent_settings_diff": agent, **fields})
    assert answer.status == 200, answer.text


@pytest.fixture
async def client(service: Service, model: ScriptedModel) -> Client:
    client = await service.make_client()
    await settle(client, model)
    return client


def started(fake_agent: FakeAgent) -> list[dict[str, Any]]:
    """Return what agent servers were asked to start, oldest first."""
    return [
        body
        for sandbox in fake_agent.sandboxes.values()
        for path, body in sandbox.bodies
        if path.endswith("/api/conversations")
    ]


class Inside:
    """What a sandbox does with the token that its agent has."""

    def __init__(self, service: Service, token: str) -> None:
        self.token = token
        self._client = service.client_with(None)

    async def ask(self, *, model: str = "scripted", stream: bool = False) -> Answer:
        body = {**ASK, "model": model, "stream": stream}
        return await self.post("/llm/v1/chat/completions", msgspec.json.encode(body))

    async def post(self, path: str, body: bytes) -> Answer:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        return await self._client.post(path, data=body, headers=headers)

    async def hang_up_on(self, path: str, body: bytes) -> None:
        """Take the beginning of an answer, and no more."""
        async with aiohttp.ClientSession() as session:
            url, headers = (
                f"{self._client.base_url}{path}",
                {"Authorization": f"Bearer {self.token}"},
            )
            async with session.post(url, data=body, headers=headers) as response:
                await response.content.readany()
                response.close()

    async def get(self, path: str, header: str = "Authorization") -> Answer:
        token = f"Bearer {self.token}" if header == "Authorization" else self.token
        return await self._client.get(path, headers={header: token})


type Lend = Callable[[Client], Awaitable[tuple[str, Inside]]]


@pytest.fixture
def lend(service: Service, fake_agent: FakeAgent) -> Lend:
    """Start a conversation; return it, and who has its token."""

    async def start(client: Client) -> tuple[str, Inside]:
        conversation_id = (await client.start_conversation(None)).replace("-", "")
        return conversation_id, Inside(service, started(fake_agent)[-1]["agent"]["llm"]["api_key"])

    return start


async def users_of(admin: Client) -> dict[str, str]:
    return {one["name"]: one["id"] for one in (await admin.get("/api/v1/users")).json()}


async def spent_today(admin: Client) -> float:
    path = f"/api/v1/users/{(await users_of(admin))['admin']}/usage"
    return float((await admin.get(path)).json()["spent_today"])


async def test_an_agent_gets_a_token_in_place_of_the_key(
    client: Client, service: Service, fake_agent: FakeAgent, lend: Lend
) -> None:
    _, inside = await lend(client)
    body = started(fake_agent)[-1]
    assert body["agent"]["llm"]["base_url"] == f"{service.url}/llm/v1"
    assert body["agent"]["llm"]["model"] == "openai/scripted"
    assert body["agent"]["condenser"]["llm"]["api_key"] == inside.token
    assert (
        KEY
        not in msgspec.json.encode(
            [sandbox.bodies for sandbox in fake_agent.sandboxes.values()]
        ).decode()
    )
    answer = await inside.ask(model="another")
    assert answer.status == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
    assert answer.json()["model"] == "scripted"
    models = await inside.get("/llm/v1/models")
    assert [one["id"] for one in models.json()["data"]] == ["scripted"]


async def test_a_stream_is_passed_on_and_counted(
    client: Client, service: Service, lend: Lend
) -> None:
    conversation_id, inside = await lend(client)
    answer = await inside.ask(stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.text.rstrip().endswith("data: [DONE]")
    await inside.ask()
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, conversation_id))
    assert (used.prompt_tokens, used.completion_tokens) == (20, 10)
    assert used.dollars == pytest.approx(2 * (10 * 0.01 + 5 * 0.02))
    assert await spent_today(client) == pytest.approx(used.dollars)


async def test_a_token_opens_nothing_else_and_no_other_key_opens_a_model(
    client: Client, service: Service, fake_agent: FakeAgent, lend: Lend
) -> None:
    _, inside = await lend(client)
    [(sandbox_id, sandbox)] = fake_agent.sandboxes.items()
    for path in (
        "/api/v1/users/me",
        f"{STARTS}/search",
        f"/sandboxes/{sandbox_id}/agent/api/conversations",
    ):
        for header in ("X-Session-API-Key", "Authorization", "X-Access-Token"):
            assert (await inside.get(path, header)).status == 401, path
    assert (await inside.post(f"/api/v1/webhooks/events/{'0' * 32}", b"[]")).status == 401
    for key in (sandbox.key, str(client.key), "asmt_" + "x" * 43, ""):
        refused = await Inside(service, key).ask()
        assert (refused.status, refused.json()["code"]) == (401, "not_authenticated"), key


async def test_a_token_outlives_a_restart_and_goes_with_its_conversation(
    client: Client, service: Service, lend: Lend
) -> None:
    conversation_id, inside = await lend(client)
    other_id, other = await lend(client)
    assert other.token != inside.token
    await service.restart()
    assert (await inside.ask()).status == 200
    assert (await client.delete(f"{STARTS}/{conversation_id}")).status == 200
    assert (await inside.ask()).status == 401
    assert (await other.ask()).status == 200
    assert other_id != conversation_id


async def test_a_token_of_a_user_who_is_blocked_opens_nothing(
    service: Service, model: ScriptedModel, lend: Lend
) -> None:
    admin, bob = await service.make_client(), await service.make_client("bob", Role.MEMBER)
    await settle(bob, model)
    _, inside = await lend(bob)
    await admin.patch(f"/api/v1/users/{(await users_of(admin))['bob']}", json={"is_blocked": True})
    assert (await inside.ask()).status == 401


async def test_calls_stop_at_the_budget_and_one_at_the_most_goes_over_it(
    client: Client, service: Service, model: ScriptedModel, lend: Lend
) -> None:
    # One call costs 0.20.
    assert (await client.post("/api/settings", json={"max_budget_per_task": 0.5})).status == 200
    _, inside = await lend(client)
    answers = await asyncio.gather(*(inside.ask() for _ in range(6)))
    assert sorted(answer.status for answer in answers) == [200] * 3 + [402] * 3
    await service.restart()
    refused = await inside.ask(stream=True)
    assert (refused.status, refused.json()["code"]) == (402, "model_budget_reached")
    assert refused.json()["error"]["code"] == "insufficient_quota"
    assert "budget" in refused.json()["error"]["message"]
    assert len(model.requests) == 3


async def test_a_call_that_ends_with_its_server_counts_as_the_dearest_before_it(
    client: Client, service: Service, model: ScriptedModel, lend: Lend, fake_world: TroubledWorld
) -> None:
    assert (await client.post("/api/settings", json={"max_budget_per_task": 0.3})).status == 200
    conversation_id, inside = await lend(client)
    assert (await inside.ask()).status == 200
    model.playbook = Playbook([say("Too late.", delay_seconds=3600.0)])

    async def ask_in_vain() -> None:
        with contextlib.suppress(aiohttp.ClientError):
            await inside.ask()

    async with asyncio.TaskGroup() as group:
        group.create_task(ask_in_vain())
        await eventually(lambda: len(model.requests) == 2)
        # What a server finds whose forerunner was killed at this moment.
        copy = service.data_dir.with_name("killed")
        shutil.copytree(service.data_dir, copy)
        following = Service(copy, service.config, lambda: load_plugins(fake=fake_world.plugin()))
        await following.start()
        assert (await Inside(following, inside.token).ask()).status == 402
        await following.close()
        await service.restart()
    assert (await inside.ask()).status == 402
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, conversation_id))
    assert used.dollars == pytest.approx(0.4)
    assert len(model.requests) == 2


async def test_a_call_counts_for_its_user_though_the_conversation_goes_meanwhile(
    client: Client, model: ScriptedModel, lend: Lend
) -> None:
    conversation_id, inside = await lend(client)
    model.playbook = Playbook([say("Late.", delay_seconds=1.5)])
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(inside.ask())
        await eventually(lambda: len(model.requests) == 1)
        path = f"/api/v1/app-conversations/{conversation_id}"
        assert (await client.delete(path)).status == 200
        assert await spent_today(client) == 0.0
    usage = asking.result().json()["usage"]
    read, written = usage["prompt_tokens"], usage["completion_tokens"]
    cost = read * PRICES["input_cost_per_token"] + written * PRICES["output_cost_per_token"]
    assert await spent_today(client) == pytest.approx(cost)


async def test_a_call_that_cannot_be_counted_holds_up_no_start(
    client: Client, service: Service, lend: Lend
) -> None:
    broken, counted = [(await lend(client))[0] for _ in range(2)]

    async def prepare(tx: Transaction) -> None:
        for one in (broken, counted):
            await note_call(tx, f"call-{one}", one, CallUsage(dollars=0.2))
        sql = "UPDATE conversations SET metrics = :metrics WHERE id = :id"
        await tx.run(sql, {"id": broken, "metrics": b"[]"})

    await service.app[DATABASE].write(prepare)
    await service.restart()
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, counted))
    assert used.dollars == 0.2
    left = await service.app[DATABASE].read(open_calls)
    assert [row["conversation_id"] for row in left] == [broken]


async def test_calls_stop_at_the_quota_of_the_user(
    client: Client, model: ScriptedModel, lend: Lend
) -> None:
    path = f"/api/v1/users/{(await users_of(client))['admin']}/quotas"
    _, inside = await lend(client)
    quotas = {"spend_per_day": 0.3}
    assert (await client.put(path, json=quotas)).status == 200
    statuses = [(await inside.ask()).status for _ in range(3)]
    assert statuses == [200, 200, 402]
    assert len(model.requests) == 2


async def test_what_the_model_refuses_is_passed_on_without_its_key(
    client: Client, model: ScriptedModel, service: Service, lend: Lend
) -> None:
    conversation_id, inside = await lend(client)
    model.fail_next(429)
    refused = await inside.ask()
    assert (refused.status, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    for body in (b"[]", b"{", b"\xff"):
        bad = await inside.post("/llm/v1/chat/completions", body)
        assert bad.status == 400, body
    await model.stop()
    away = await inside.ask()
    assert (away.status, away.json()["code"]) == (502, "model_unavailable")
    assert away.json()["error"]["message"]
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, conversation_id))
    assert used.prompt_tokens == 0


@contextlib.asynccontextmanager
async def listening(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
) -> AsyncIterator[Upstream]:
    """Have a handler answer as a model."""
    app = web.Application()
    app.router.add_post("/v1/responses", handler)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield Upstream(model="x", base_url=url, api_key=Secret(KEY))
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(
    upstream: Upstream, service: Service, client: Client, lend: Lend
) -> AsyncIterator[tuple[str, Inside]]:
    """Start a conversation with that model, whose tokens have prices."""
    await reconfigure(service, sandboxes={"model_hosts": (host_of_url(upstream.base_url),)})
    llm = {"model": "openai/x", "base_url": upstream.base_url, **PRICES}
    await client.post("/api/v1/settings", json={"agent_settings_diff": {"llm": llm}})
    yield await lend(client)


async def test_an_agent_that_hangs_up_says_nothing_of_the_model(
    client: Client, service: Service, lend: Lend, caplog: pytest.LogCaptureFixture
) -> None:
    has_ended = asyncio.Event()

    async def talk(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            while True:
                await response.write(b"data: {}\n\n" * 1000)
        finally:
            has_ended.set()

    async with (
        listening(talk) as upstream,
        asking(upstream, service, client, lend) as (conversation_id, inside),
    ):
        caplog.clear()
        await inside.hang_up_on("/llm/v1/responses", b"{}")
        async with asyncio.timeout(10):
            await has_ended.wait()
        await eventually(lambda: service.app[MEASURES].running == 0)
    events = await client.events(conversation_id)
    assert "model_refusal" not in [event.get("key") for event in events]
    assert "response aborted" not in caplog.messages


async def test_the_key_is_not_told_by_a_model_that_repeats_it() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=401)
        await response.prepare(request)
        text = msgspec.json.encode({"error": request.headers["Authorization"]})
        for part in (text[:20], text[20:]):
            await response.write(part)
            # A part that comes by itself.
            await asyncio.sleep(0.1)
        return response

    async with listening(refuse) as upstream:
        proxy = ModelProxy([host_of_url(upstream.base_url)], silence_seconds=5)
        async with proxy.ask(upstream, "responses", b"{}") as answer:
            body = b"".join([part async for part in answer.parts()])
        assert answer.status == 401
        assert body == b'{"error":"Bearer **********"}'
        with pytest.raises(ModelUnavailable, match="public addresses only"):
            async with ModelProxy([], silence_seconds=5).ask(upstream, "responses", b"{}"):
                pass


async def test_a_call_that_the_model_leaves_without_an_answer_is_counted(
    client: Client, service: Service, lend: Lend
) -> None:
    may_end = asyncio.Event()

    async def say_nothing(_request: web.Request) -> web.Response:
        await may_end.wait()
        return web.Response()

    service.config = msgspec.structs.replace(
        service.config, models=ModelsConfig(silence_seconds=0.5)
    )
    async with (
        listening(say_nothing) as upstream,
        asking(upstream, service, client, lend) as (conversation_id, inside),
    ):
        silent = await inside.post("/llm/v1/responses", b'{"input": "hello"}')
        may_end.set()
    assert (silent.status, silent.json()["code"]) == (502, "model_unavailable")
    assert "nothing for 0.5 seconds" in silent.json()["detail"]
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, conversation_id))
    assert used.prompt_tokens > 0
    assert used.dollars == pytest.approx(used.prompt_tokens * PRICES["input_cost_per_token"])


@contextlib.asynccontextmanager
async def saying(head: bytes) -> AsyncIterator[Upstream]:
    """Have something answer that head as a model, and end the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + b"Content-Length: 20\r\n\r\ndata: {}\n\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Upstream(model="x", base_url=f"http://127.0.0.1:{port}/v1", api_key=None)


@pytest.mark.parametrize("status", ["000", "101", "199"])
async def test_an_answer_that_is_none_of_http_is_none_of_a_model(status: str) -> None:
    async with saying(f"HTTP/1.1 {status} X\r\n".encode()) as upstream:
        proxy = ModelProxy([host_of_url(upstream.base_url)], silence_seconds=5)
        with pytest.raises(ModelUnavailable):
            async with proxy.ask(upstream, "responses", b"{}") as answer:
                assert answer.status >= 200


async def test_a_stream_that_the_model_breaks_off_is_a_line_in_the_log(
    client: Client, service: Service, lend: Lend, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nRetry-After: \x07\r\n"
    async with saying(head) as upstream, asking(upstream, service, client, lend) as (_, inside):
        with pytest.raises(aiohttp.ClientPayloadError):
            await inside.post("/llm/v1/responses", b"{}")
    [aborted] = [one for one in caplog.records if one.getMessage() == "response aborted"]
    assert (aborted.levelname, aborted.exc_info) == ("WARNING", None)
    assert vars(aborted)["code"] == "model_unavailable"


async def test_a_large_answer_is_passed_on_before_it_is_whole(
    client: Client, service: Service, lend: Lend
) -> None:
    may_end = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 2**23)
        await may_end.wait()
        await response.write(b"the end")
        return response

    async with (
        listening(answer) as upstream,
        asking(upstream, service, client, lend) as (conversation_id, inside),
    ):
        try:
            async with asyncio.timeout(10):
                await inside.hang_up_on("/llm/v1/responses", b"{}")
        finally:
            may_end.set()
        await eventually(lambda: service.app[MEASURES].running == 0)
        whole = await inside.post("/llm/v1/responses", b"{}")
        assert whole.text == "x" * 2**23 + "the end"
    used = await service.app[DATABASE].read(lambda reader: find_usage(reader, conversation_id))
    assert used.completion_tokens >= 2**21


async def test_a_whole_answer_beyond_the_bound_is_not_gathered() -> None:
    answered = [web.Response(body=bytes(LARGEST_ANSWER_BYTES)), web.StreamResponse()]

    async def answer(request: web.Request) -> web.StreamResponse:
        response = answered.pop(0)
        if answered:
            return response
        await response.prepare(request)
        while True:
            await response.write(bytes(2**20))

    async with listening(answer) as upstream:
        proxy = ModelProxy([host_of_url(upstream.base_url)], silence_seconds=5)
        async with proxy.ask(upstream, "responses", b"{}") as whole:
            assert sum([len(part) async for part in whole.parts()]) == LARGEST_ANSWER_BYTES
        with pytest.raises(ModelUnavailable, match="larger than 64 MiB"):
            async with proxy.ask(upstream, "responses", b"{}") as endless, asyncio.timeout(30):
                assert sum([len(part) async for part in endless.parts()])


@pytest.mark.parametrize(
    "llm",
    [
        {"model": "anthropic/claude-sonnet-4-5", "base_url": None},
        {"model": "openai/scripted", "base_url": "http://127.0.0.1:9/v1"},
        {"model": "hosted_vllm/x", "base_url": None},
        {"model": "openai/x", "base_url": "http://[::1]:9/v1"},
        {"model": "openai/x", "api_version": "2024-06-01"},
    ],
)
async def test_other_models_and_addresses_are_reached_by_the_sandbox_itself(
    service: Service, fake_agent: FakeAgent, llm: dict[str, Any]
) -> None:
    client = await service.make_client()
    body = {"agent_settings_diff": {"llm": {"api_key": KEY, **llm}}}
    assert (await client.post("/api/v1/settings", json=body)).status == 200
    await client.start_conversation()
    assert started(fake_agent)[-1]["agent"]["llm"]["api_key"] == KEY


async def test_a_profile_is_switched_to_by_a_token_too(
    client: Client, fake_agent: FakeAgent, model: ScriptedModel, lend: Lend, service: Service
) -> None:
    saved = {"llm": {"model": "openai/scripted", "base_url": model.url, "api_key": KEY}}
    assert (await client.post("/api/v1/settings/profiles/fast", json=saved)).status == 201
    conversation_id, inside = await lend(client)
    path = f"{STARTS}/{conversation_id}/switch_profile"
    assert (await client.post(path, json={"profile_name": "fast"})).status == 200
    [sandbox] = fake_agent.sandboxes.values()
    [llm] = [body["llm"] for where, body in sandbox.bodies if where.endswith("/switch_llm")]
    assert llm["api_key"] not in (KEY, inside.token)
    assert llm["base_url"] == f"{service.url}/llm/v1"
    assert (await Inside(service, llm["api_key"]).ask()).status == 200


async def test_no_key_is_stored_in_the_clear(client: Client, service: Service, lend: Lend) -> None:
    await lend(client)
    await service.stop()
    stored = b"".join(file.read_bytes() for file in service.data_dir.glob("*.db*"))
    assert stored
    assert KEY.encode() not in stored


@pytest.fixture
async def waiting(service: Service, fake_agent: FakeAgent, model: ScriptedModel) -> Client:
    """Return a client whose starts wait long for what their models say; agents say nothing."""
    await reconfigure(service, conversations={"first_answer_seconds": 60.0})
    fake_agent.playbook = Playbook([say("at last", delay_seconds=60)])
    client = await service.make_client()
    await settle(client, model)
    return client


async def test_a_start_ends_as_soon_as_the_model_cannot_be_asked(
    waiting: Client, service: Service, fake_agent: FakeAgent, model: ScriptedModel
) -> None:
    task = await waiting.start_task()
    await eventually(lambda: bool(started(fake_agent)))
    await model.stop()
    token = started(fake_agent)[-1]["agent"]["llm"]["api_key"]
    assert (await Inside(service, token).ask()).status == 502
    ended = await waiting.end_of_start(task["id"])
    assert ended["status"] == "ERROR"
    place = model.url.removeprefix("http://").partition("/")[0]
    assert f"Nothing answers at the address of the model: {place}" in ended["detail"]
    assert "Check `llm_base_url`" in ended["detail"]


async def test_a_model_that_has_just_answered_is_waited_for_no_more(
    waiting: Client, service: Service, fake_agent: FakeAgent
) -> None:
    first = await waiting.start_task()
    await eventually(lambda: bool(started(fake_agent)))
    token = started(fake_agent)[-1]["agent"]["llm"]["api_key"]
    assert (await Inside(service, token).ask()).status == 200
    second = await waiting.start_task()
    parts = []
    for task in (first, second):
        ended = await waiting.end_of_start(task["id"])
        assert ended["status"] == "READY", ended["detail"]
        [stage] = [one for one in ended["stages"] if one["status"] == "STARTING_CONVERSATION"]
        parts.append(list(stage["parts"]))
    assert parts == [["conversation", "first_answer"], ["conversation"]]
