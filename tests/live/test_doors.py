"""The published clients of two protocols with a real agent: MCP over a kill of the server, and ACP. And another agent inside."""

import re
import sys
from typing import Any

import pytest

from agentsvc.base.values import new_id
from tests.http.v1.test_mcp_server import session_of, used
from tests.live.conftest import MakeInstallation
from tests.live.console.users import new_user
from tests.live.installation import Installation
from tests.live.scripts import DONE, run
from tests.plugins.acp_agent.test_agent import Editor, agent_for, prompt

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_task_over_mcp_goes_on_after_a_kill_and_an_editor_loads_it(
    make_installation: MakeInstallation,
) -> None:
    installation = await make_installation(AGENTSVC_MCP_SERVER__ENABLED="true")
    client = installation.client()
    chosen = new_id()
    order = {"message": run("echo hello >a.txt", "sleep 3; echo two"), "conversation_id": chosen}
    async with session_of(client) as session:
        await used(session, "start_conversation", **order)
        await installation.restart()
        await used(session, "start_conversation", **order)
        ended: dict[str, Any] = {"is_over": False}
        for _ in range(5):
            ended = await used(
                session, "collect_conversation", conversation_id=chosen, wait_seconds=40
            )
            if ended["is_over"]:
                break
        assert (ended["execution_status"], ended["answer"]) == ("finished", DONE)
        assert {"status": "ADDED", "path": "a.txt"} in ended["changes"]
        uri: Any = f"agentsvc://conversations/{chosen}/files/a.txt"
        [content] = (await session.read_resource(uri)).contents
        assert "hello" in str(content)
    await client.save_settings(confirmation_mode=True, security_analyzer="none")
    editor = Editor()
    async with agent_for(client, editor) as connection:
        await connection.load_session(session_id=chosen, cwd="/", mcp_servers=[])
        assert editor.texts("user_message_chunk") == [order["message"]]
        assert DONE in editor.texts("agent_message_chunk")
        calls = [one for one in editor.updates if one.session_update == "tool_call"]
        results = [one for one in editor.updates if one.session_update == "tool_call_update"]
        assert [one.tool_call_id for one in calls] == [one.tool_call_id for one in results]
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        assert await prompt(connection, session_id, run("echo three")) == "end_turn"
        assert editor.asked
        editor.answer = "reject"
        assert await prompt(connection, session_id, run("echo four")) == "end_turn"


OTHER_AGENT = r"""
import json, os, sys, urllib.request

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def update(**what):
    send(method="session/update", params={"sessionId": "one", "update": what})

def ask(text):
    body = {"model": "any", "messages": [{"role": "user", "content": text}]}
    key = os.environ["OPENAI_API_KEY"]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

model, cost = "small", 0.0
models = [{"modelId": name, "name": name} for name in ("small", "big")]
for line in sys.stdin:
    message = json.loads(line)
    given, result = message.get("params") or {}, {}
    match message.get("method"):
        case "initialize":
            result = {"protocolVersion": 1, "agentCapabilities": {"loadSession": True},
                      "agentInfo": {"name": "scripted", "version": "1"}, "authMethods": []}
        case "session/new":
            result = {"sessionId": "one", "models": {"currentModelId": model, "availableModels": models}}
        case "session/set_model":
            model = given["modelId"]
        case "session/prompt":
            said = "".join(part.get("text", "") for part in given["prompt"])
            update(sessionUpdate="tool_call", toolCallId=str(cost), title="write a.txt", kind="edit",
                   status="in_progress", rawInput={"path": "a.txt"})
            with open("a.txt", "w") as file:
                file.write(said)
            update(sessionUpdate="tool_call_update", toolCallId=str(cost), status="completed", rawOutput="written")
            text = f"{model} asked with {os.environ['OPENAI_API_KEY'][:5]}: {ask('[script:say]')}"
            update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": text})
            cost += 0.25
            update(sessionUpdate="usage_update", used=10, size=1000, cost={"amount": cost, "currency": "USD"})
            result = {"stopReason": "end_turn"}
    if "id" in message and "method" in message:
        send(id=message["id"], result=result)
"""
"""An agent that speaks the protocol: it writes what it is told to a file, and says what its model does."""


async def test_another_agent_works_in_a_sandbox_with_a_token_for_the_model(
    shared: Installation,
) -> None:
    # A user of its own, whose agents alone are others, whatever becomes of this.
    client = await new_user(shared)
    await client.save_settings()
    command = {"acp_server": "custom", "acp_command": [sys.executable, "-c", OTHER_AGENT]}
    diff = {"agent_settings_diff": {"agent_kind": "acp", **command}}
    assert (await client.post("/api/v1/settings", json=diff)).status == 200
    conversation_id = await client.start_conversation("Remember this.")
    ended = await client.wait_for_execution(conversation_id, "finished")
    assert (ended["agent_kind"], ended["acp_server"]) == ("acp", "custom")
    assert ended["metrics"]["accumulated_cost"] == 0.25
    events = await client.until(conversation_id, lambda events: "small asked" in str(events))
    calls = [one for one in events if one["kind"] == "ACPToolCallEvent"]
    assert {one["tool_call_id"] for one in calls} == {"0.0"}
    assert (calls[-1]["title"], calls[-1]["status"]) == ("write a.txt", "completed")
    # What it shows its model is a token of this server.
    assert set(re.findall(r"(\w+) asked with (\w+): \w", str(events))) == {("small", "asmt_")}
    assert client.model.key.reveal() not in str(events)
    switch = f"/api/v1/app-conversations/{conversation_id}/switch_acp_model"
    assert (await client.post(switch, json={"model": "big"})).status == 200
    await client.send(conversation_id, "And this.")
    await client.until(conversation_id, lambda events: "big asked with" in str(events))
    ended = await client.wait_for_execution(conversation_id, "finished")
    assert ended["metrics"]["accumulated_cost"] == 0.5
