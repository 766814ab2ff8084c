"""The published clients of two protocols with a real agent: MCP over a kill of the server, and ACP."""

from typing import Any

import pytest

from agentsvc.base.values import new_id
from tests.http.v1.test_mcp_server import session_of, used
from tests.live.conftest import MakeInstallation
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
