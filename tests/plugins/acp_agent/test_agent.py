"""`agentsvc acp` as editors use it: the published client speaks to it over its standard streams."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import acp
import pytest
from acp.client.connection import ClientSideConnection
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

from agentsvc.agentserver.responses import CommandResult
from agentsvc.testing.agent import FakeAgent
from tests.live.scripts import SCRIPTS, run
from tests.service import Client, Service


@pytest.fixture
async def fake_agent() -> AsyncIterator[FakeAgent]:
    async with FakeAgent(scripts=SCRIPTS) as agent:
        yield agent


class Editor:
    """Keeps what it is told, and answers what it is asked with one option; it has nothing else."""

    def __init__(self, answer: str = "allow") -> None:
        self.answer = answer
        self.asked: list[Any] = []
        self.updates: list[Any] = []
        self.told = asyncio.Event()

    def on_connect(self, conn: Any) -> None:
        """It needs no more of the connection."""

    async def request_permission(self, *_: Any, **asked: Any) -> RequestPermissionResponse:
        self.asked.append(asked)
        if not self.answer:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = AllowedOutcome(outcome="selected", option_id=self.answer)
        return RequestPermissionResponse(outcome=chosen)

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        self.told.set()

    def texts(self, kind: str) -> list[str]:
        return [one.content.text for one in self.updates if one.session_update == kind]

    @property
    def kinds(self) -> list[str]:
        return [one.session_update for one in self.updates]


@asynccontextmanager
async def agent_for(client: Client, editor: Editor) -> AsyncIterator[ClientSideConnection]:
    command = (sys.executable, "-m", "agentsvc", "acp", "--url", client.base_url)
    environment = {"AGENTSVC_API_KEY": client.key or ""}
    told = cast("acp.Client", editor)
    async with acp.spawn_agent_process(told, *command, env=environment) as (connection, _):
        made = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert made.protocol_version == acp.PROTOCOL_VERSION
        assert made.agent_capabilities is not None
        assert made.agent_capabilities.load_session
        yield connection


async def prompt(connection: ClientSideConnection, session_id: str, text: str) -> str:
    ended = await connection.prompt(session_id=session_id, prompt=[acp.text_block(text)])
    return str(ended.stop_reason)


async def test_a_session_is_a_conversation_that_another_editor_loads_without_a_gap(
    client: Client, service: Service
) -> None:
    first, second = Editor(), Editor()
    async with agent_for(client, first) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        assert await prompt(connection, session_id, run("echo one")) == "end_turn"
        kinds = first.kinds
        assert kinds[:2] == ["tool_call", "tool_call_update"]
        assert first.updates[0].kind == "execute"
        assert first.updates[1].status == "completed"
        assert first.texts("agent_message_chunk")
        assert first.texts("user_message_chunk") == []
        await service.restart()
        assert await prompt(connection, session_id, "[script:say]") == "end_turn"
        assert first.texts("agent_message_chunk")[-1]
    async with agent_for(client, second) as connection:
        listed = (await connection.list_sessions()).sessions
        assert [one.session_id for one in listed] == [session_id]
        await connection.load_session(session_id=session_id, cwd="/", mcp_servers=[])
        assert second.texts("user_message_chunk") == [run("echo one"), "[script:say]"]
        rest = [one for one in second.updates if one.session_update != "user_message_chunk"]
        assert rest == first.updates
        await connection.resume_session(session_id=session_id, cwd="/", mcp_servers=[])
        assert len(second.updates) == len(first.updates) + 2


@pytest.mark.parametrize(("answer", "status"), [("allow", "completed"), ("reject", "failed")])
async def test_a_confirmation_is_a_permission_request(
    client: Client, answer: str, status: str
) -> None:
    await client.save_settings(confirmation_mode=True, security_analyzer="none")
    editor = Editor(answer)
    async with agent_for(client, editor) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        assert await prompt(connection, session_id, run("echo one")) == "end_turn"
        assert len(editor.asked) == 1
        options = {one.option_id: one.kind for one in editor.asked[0]["options"]}
        assert options == {"allow": "allow_once", "reject": "reject_once"}
        [ended] = [one for one in editor.updates if one.session_update == "tool_call_update"]
        assert ended.status == status
        assert ended.tool_call_id == editor.asked[0]["tool_call"].tool_call_id


async def test_a_turn_is_cancelled(client: Client, fake_agent: FakeAgent) -> None:
    slept = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("sleep", slept, seconds=30)
    editor = Editor()
    async with agent_for(client, editor) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            turn = group.create_task(prompt(connection, session_id, run("sleep 30")))
            await editor.told.wait()
            await connection.cancel(session_id=session_id)
        assert turn.result() == "cancelled"


async def test_what_cannot_be_done_is_an_error_and_the_agent_goes_on(client: Client) -> None:
    async with agent_for(client, Editor()) as connection:
        for wrong in (
            connection.load_session(session_id="no", cwd="/", mcp_servers=[]),
            prompt(connection, "0" * 32, "hello"),
            connection.ext_method("no/such", {}),
        ):
            with pytest.raises(acp.RequestError):
                await wrong
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        with pytest.raises(acp.RequestError):
            await prompt(connection, session_id, "  ")
