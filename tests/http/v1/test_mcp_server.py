"""The MCP server, as the published client calls it."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Implementation
from pydantic import AnyUrl

from agentsvc.accounts.keys import KeyScope, Role
from agentsvc.base.values import new_id
from tests.fake_agent import FakeAgent
from tests.service import Answer, Client, Service

READS = {"list_conversations", "read_conversation", "collect_conversation"}
ALL = READS | {
    "start_conversation",
    "send_message",
    "stop_conversation",
    "answer_confirmation",
}


@asynccontextmanager
async def session_of(client: Client) -> AsyncIterator[ClientSession]:
    headers = {"Authorization": f"Bearer {client.key}"}
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(f"{client.base_url}/mcp", http_client=http) as (read, write, _),
        ClientSession(
            read,
            write,
            read_timeout_seconds=timedelta(seconds=60),
            client_info=Implementation(name="test", version="1"),
        ) as session,
    ):
        await session.initialize()
        yield session


def found(result: CallToolResult) -> dict[str, Any]:
    assert not result.isError, result.content
    assert result.structuredContent is not None
    [content] = result.content
    assert content.type == "text"
    assert json.loads(content.text) == result.structuredContent
    return result.structuredContent


async def used(session: ClientSession, tool: str, **arguments: Any) -> dict[str, Any]:
    return found(await session.call_tool(tool, arguments))


async def said(session: ClientSession, tool: str, **arguments: Any) -> str:
    """Return what a tool says that fails."""
    result = await session.call_tool(tool, arguments)
    assert result.isError
    [content] = result.content
    assert content.type == "text"
    return content.text


async def send(client: Client, method: str, params: Any = None, **changes: Any) -> Answer:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}, **changes}
    return await client.post("/mcp", json=body)


async def test_the_published_client_does_a_task_and_goes_on_after_a_restart(
    client: Client, service: Service
) -> None:
    chosen = new_id()
    async with session_of(client) as session:
        assert {one.name for one in (await session.list_tools()).tools} == ALL
        started = await used(
            session, "start_conversation", message="please work", conversation_id=chosen
        )
        again = await used(
            session, "start_conversation", message="please work", conversation_id=chosen
        )
        assert again["conversation_id"] == started["conversation_id"]
        conversation_id = started["conversation_id"]
        ended = await used(
            session, "collect_conversation", conversation_id=conversation_id, wait_seconds=40
        )
        assert ended["is_over"], ended
        assert ended["execution_status"] == "finished"
        assert ended["answer"]
        await service.restart()
        [listed] = (await used(session, "list_conversations"))["conversations"]
        assert listed["conversation_id"] == conversation_id
        read = await used(session, "read_conversation", conversation_id=conversation_id)
        texts = [one["text"] for one in read["events"]]
        assert "please work" in texts
        assert ended["answer"] in texts
        await used(session, "send_message", conversation_id=conversation_id, message="and more")
        await client.wait_for_execution(conversation_id, "finished")
        after = read["next_after"]
        later = await used(
            session, "read_conversation", conversation_id=conversation_id, after=after
        )
        assert "and more" in [one["text"] for one in later["events"]]


async def test_work_that_the_agent_has_not_begun_is_not_over(
    client: Client, fake_agent: FakeAgent
) -> None:
    # A start waits for no sign of life of a model that has just answered.
    await client.wait_for_execution(await client.start_conversation("please work"), "finished")
    fake_agent.may_run.clear()
    conversation_id = await client.start_conversation("please work")
    rests = fake_agent.find_conversation(conversation_id)
    assert rests is not None
    assert rests.status == "idle"
    async with session_of(client) as session:
        at_work = await used(
            session, "collect_conversation", conversation_id=conversation_id, wait_seconds=2
        )
        assert (at_work["is_over"], at_work["execution_status"]) == (False, "running")
        fake_agent.may_run.set()
        ended = await used(
            session, "collect_conversation", conversation_id=conversation_id, wait_seconds=40
        )
        assert (ended["is_over"], ended["execution_status"]) == (True, "finished")


async def test_resources_are_the_events_files_and_diffs_of_conversations(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    conversation_id = await client.start_conversation("please work")
    ended = await client.wait_for_execution(conversation_id, "finished")
    sandbox = fake_agent.sandboxes[ended["sandbox_id"]]
    sandbox.files["/workspace/project/a b.txt"] = b"text"
    sandbox.git_changes["/workspace/project"] = [{"status": "ADDED", "path": "a b.txt"}]
    sandbox.git_diffs["/workspace/project/a b.txt"] = {"modified": "text", "original": None}
    async with session_of(client) as session:
        listed = [str(one.uri) for one in (await session.list_resources()).resources]
        assert f"agentsvc://conversations/{conversation_id}/events" in listed
        templates = (await session.list_resource_templates()).resourceTemplates
        assert len(templates) == 6

        async def text_of(path: str) -> str:
            uri = AnyUrl(f"agentsvc://conversations/{conversation_id}/{path}")
            [content] = (await session.read_resource(uri)).contents
            text: str = getattr(content, "text")  # noqa: B009
            return text

        events = [json.loads(line) for line in (await text_of("events")).splitlines()]
        assert events == await client.events(conversation_id)
        assert len((await text_of("events/2")).splitlines()) == len(events) - 3
        assert json.loads(await text_of("changes")) == sandbox.git_changes["/workspace/project"]
        assert json.loads(await text_of("diff/a%20b.txt")) == {"modified": "text", "original": None}
        assert await text_of("files/a%20b.txt") == "text"
        for wrong in ("files/no/such.txt", "diff/none", "nothing", f"../{'0' * 32}/events"):
            with pytest.raises(McpError) as refused:
                await text_of(wrong)
            assert refused.value.error.code == -32002
    stranger = await service.make_client("ann", Role.MEMBER)
    uri = f"agentsvc://conversations/{conversation_id}/events"
    answer = await send(stranger, "resources/read", {"uri": uri})
    assert answer.json()["error"]["code"] == -32002


async def test_an_agent_that_asks_is_answered(client: Client) -> None:
    await client.save_settings(confirmation_mode=True)
    conversation_id = await client.start_conversation("please work")
    async with session_of(client) as session:
        collected = await used(
            session, "collect_conversation", conversation_id=conversation_id, wait_seconds=20
        )
        assert collected["execution_status"] == "waiting_for_confirmation"
        await used(
            session,
            "answer_confirmation",
            conversation_id=conversation_id,
            accept=False,
            reason="not now",
        )
        await client.wait_for_execution(conversation_id, "idle")
        refusal = await said(
            session, "answer_confirmation", conversation_id=conversation_id, accept=True
        )
        assert refusal.startswith("conflict: ")


async def test_keys_do_what_their_scope_allows_and_it_is_in_the_audit_log(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    reader = await service.make_client(scope=KeyScope.READ)
    async with session_of(reader) as session:
        assert {one.name for one in (await session.list_tools()).tools} == READS
        assert len((await used(session, "list_conversations"))["conversations"]) == 1
        text = await said(session, "send_message", conversation_id=conversation_id, message="x")
        assert text.startswith("not_allowed: ")
    async with session_of(client) as session:
        await used(session, "send_message", conversation_id=conversation_id, message="x")
    entries = (await client.get("/api/v1/audit-log?text=MCP")).json()["items"]
    assert [(one["action"], one["status"]) for one in entries] == [
        ("MCP send_message", 200),
        ("MCP send_message", 403),
    ]
    assert {one["subject"] for one in entries} == {f"conversation_id={conversation_id}"}
    everything = (await client.get("/api/v1/audit-log?text=mcp")).json()["items"]
    assert [one for one in everything if "POST /mcp" in one["action"]] == []


async def test_clients_without_a_key_are_told_where_they_log_in(service: Service) -> None:
    stranger = service.client_with(None)
    answer = await send(stranger, "tools/list")
    assert answer.status == 401
    where = f"{service.url}/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{where}"' in answer.headers["WWW-Authenticate"]
    metadata = (await stranger.get("/.well-known/oauth-protected-resource/mcp")).json()
    assert metadata["resource"] == f"{service.url}/mcp"
    [issuer] = metadata["authorization_servers"]
    server = (await stranger.get("/.well-known/oauth-authorization-server")).json()
    assert server["issuer"] == issuer == service.url
    begun = await stranger.post(
        server["device_authorization_endpoint"].removeprefix(service.url),
        data="",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
    )
    assert begun.json()["user_code"]


async def test_what_does_not_fit_is_refused_in_words(client: Client) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    accepted = await client.post("/mcp", json=note)
    assert (accepted.status, accepted.body) == (202, b"")
    assert (await client.get("/mcp")).status == 405
    assert (await client.delete("/mcp")).status == 405
    assert (await client.post("/mcp", json=[note])).status == 422
    assert (await client.post("/mcp", json={"id": 1, "method": "ping"})).status == 422
    bad = {"Content-Type": "application/json", "MCP-Protocol-Version": "1999-01-01"}
    assert (await client.post("/mcp", data=b"{}", headers=bad)).status == 400
    foreign = {**bad, "MCP-Protocol-Version": "2025-11-25", "Origin": "https://evil.example"}
    assert (await client.post("/mcp", data=b"{}", headers=foreign)).status == 403
    assert (await send(client, "ping")).json()["result"] == {}
    assert (await send(client, "no/such")).json()["error"]["code"] == -32601
    asked = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    assert (await send(client, "initialize", asked)).json()["result"][
        "protocolVersion"
    ] == "2025-06-18"
    params: dict[str, Any]
    for params in ({}, {"name": 1}, {"name": "rm"}, {"name": {"a": 1}}):
        assert (await send(client, "tools/call", params)).json()["error"]["code"] == -32602
    for params in ({}, {"uri": 1}, {"uri": []}):
        assert (await send(client, "resources/read", params)).json()["error"]["code"] == -32602
    assert (await send(client, "resources/list", {"cursor": "x"})).json()["error"]["code"] == -32602
    arguments: Any
    for arguments in (
        {},
        [],
        "x",
        {"conversation_id": "no"},
        {"conversation_id": new_id(), "more": 1},
        {"conversation_id": new_id()},
    ):
        for name in ("read_conversation", "stop_conversation"):
            call = {"name": name, "arguments": arguments}
            result = (await send(client, "tools/call", call)).json()["result"]
            assert result["isError"], arguments


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("start_conversation", {"message": " "}),
        ("start_conversation", {"message": "x", "model": "a\0\nb"}),
        ("send_message", {"message": "\n"}),
        ("read_conversation", {"after": 2**63 - 1}),
    ],
)
async def test_what_requests_may_not_say_tools_may_not_either(
    client: Client, name: str, arguments: dict[str, Any]
) -> None:
    await client.save_settings()
    conversation_id = await client.start_conversation(None)
    if name != "start_conversation":
        arguments = {"conversation_id": conversation_id, **arguments}
    answer = await send(client, "tools/call", {"name": name, "arguments": arguments})
    assert (answer.status, answer.json()["result"]["isError"]) == (200, True)
    [content] = answer.json()["result"]["content"]
    assert "Expected" in content["text"]


async def test_few_long_events_are_read_at_once(client: Client, service: Service) -> None:
    conversation_id = await client.start_conversation("please work")
    ended = await client.wait_for_execution(conversation_id, "finished")
    last = len(await client.events(conversation_id)) - 1
    inside = service.client_with(None)
    said = {"role": "assistant", "content": [{"type": "text", "text": "x" * 3 * 1024 * 1024}]}
    for number in range(4):
        event = {
            "id": f"long-{number}",
            "timestamp": f"2100-01-01T00:00:0{number}",
            "source": "agent",
            "kind": "MessageEvent",
            "llm_message": said,
        }
        answer = await inside.post(
            f"/api/v1/webhooks/events/{conversation_id}",
            data=io.BytesIO(msgspec.json.encode([event])),
            headers={
                "X-Session-API-Key": ended["session_api_key"],
                "Content-Type": "application/json",
            },
        )
        assert answer.status == 200, answer.text
    # Those that came last are at hand.
    await service.restart()
    pages, after = [], last
    async with session_of(client) as session:
        for _ in range(3):
            page = await used(
                session, "read_conversation", conversation_id=conversation_id, after=after
            )
            pages.append([(one["text"], one["is_cut"]) for one in page["events"]])
            after = page["next_after"]
        collected = await used(session, "collect_conversation", conversation_id=conversation_id)
    assert pages == [[("", True)] * 2, [("", True)] * 2, []]
    assert collected["answer"] == ""


async def test_collect_waits_no_longer_than_it_is_told(client: Client) -> None:
    conversation_id = await client.start_conversation("[script:wait]")
    begun = asyncio.get_running_loop().time()
    call = {"name": "collect_conversation"}
    arguments = {"conversation_id": conversation_id, "wait_seconds": 1}
    answer = await send(client, "tools/call", {**call, "arguments": arguments})
    assert asyncio.get_running_loop().time() - begun < 5
    assert answer.json()["result"]["structuredContent"]["conversation_id"] == conversation_id


async def test_without_its_switch_there_is_no_server(service: Service, client: Client) -> None:
    service.config = msgspec.structs.replace(service.config, extensions={})
    await service.restart()
    assert (await send(client, "ping")).status == 404
    assert (await client.get("/api/shared-conversations?ids=x")).status == 404
