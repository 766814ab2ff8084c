"""The agent for editors, as these use it: the published client speaks to `agentsvc acp`, and to the WebSocket."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SOL_SOCKET
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlencode

import acp
import aiohttp
import msgspec
import pytest
from acp.client.connection import ClientSideConnection
from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse
from acp.ws.client import create_websocket_stream
from aiohttp import web
from websockets.exceptions import InvalidStatus

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.cli.client import StreamMessage
from agentsvc.http.keys import KEYRING
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent
from tests.live.scripts import SCRIPTS, run
from tests.plugin_loading import part
from tests.service import Client, Service

if TYPE_CHECKING:
    from acp_agent.agent import Agent
    from acp_agent.config import OrderQuery
    from acp_agent.connection import Connection
    from acp_agent.serving import Inbox, receive
else:
    Agent = part("acp_agent.agent").Agent
    Connection = part("acp_agent.connection").Connection
    OrderQuery = part("acp_agent.config").OrderQuery
    Inbox = part("acp_agent.serving").Inbox
    receive = part("acp_agent.serving").receive

DOORS = ("command", "socket")


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
async def agent_for(
    client: Client, editor: Editor, door: str = "command"
) -> AsyncIterator[ClientSideConnection]:
    opened = remote_agent if door == "socket" else local_agent
    async with opened(client, editor) as connection:
        made = await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        assert made.protocol_version == acp.PROTOCOL_VERSION
        assert made.agent_capabilities is not None
        assert made.agent_capabilities.load_session
        yield connection


@asynccontextmanager
async def remote_agent(
    client: Client, editor: Editor, **query: str
) -> AsyncIterator[ClientSideConnection]:
    url = f"{client.base_url.replace('http', 'ws')}/acp?{urlencode(query)}"
    headers = {"Authorization": f"Bearer {client.key}"} if client.key else {}
    transport = await create_websocket_stream(url, headers=headers)
    connection = acp.connect_to_agent(cast("acp.Client", editor), transport)
    try:
        yield connection
    finally:
        await connection.close()
        await transport.close()


@asynccontextmanager
async def local_agent(client: Client, editor: Editor) -> AsyncIterator[ClientSideConnection]:
    command = (sys.executable, "-m", "agentsvc", "acp", "--url", client.base_url)
    environment = {"AGENTSVC_API_KEY": client.key or ""}
    told = cast("acp.Client", editor)
    async with acp.spawn_agent_process(told, *command, env=environment) as (connection, _):
        yield connection


async def prompt(connection: ClientSideConnection, session_id: str, text: str) -> str:
    ended = await connection.prompt(session_id=session_id, prompt=[acp.text_block(text)])
    return str(ended.stop_reason)


async def reason_of(work: Awaitable[Any]) -> str:
    """Return why something fails; an empty text where it does not."""
    try:
        await work
    except (acp.RequestError, OSError) as exc:
        return str(exc) or type(exc).__name__
    return ""


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


@pytest.mark.parametrize(
    ("answer", "status", "door"),
    [
        ("allow", "completed", "command"),
        ("reject", "failed", "command"),
        ("reject", "failed", "socket"),
    ],
)
async def test_a_confirmation_is_a_permission_request(
    client: Client, answer: str, status: str, door: str
) -> None:
    await client.save_settings(confirmation_mode=True, security_analyzer="none")
    editor = Editor(answer)
    async with agent_for(client, editor, door) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        assert await prompt(connection, session_id, run("echo one")) == "end_turn"
        assert len(editor.asked) == 1
        options = {one.option_id: one.kind for one in editor.asked[0]["options"]}
        assert options == {"allow": "allow_once", "reject": "reject_once"}
        [ended] = [one for one in editor.updates if one.session_update == "tool_call_update"]
        assert ended.status == status
        assert ended.tool_call_id == editor.asked[0]["tool_call"].tool_call_id


@pytest.mark.parametrize("door", DOORS)
async def test_a_turn_is_cancelled(client: Client, fake_agent: FakeAgent, door: str) -> None:
    slept = CommandResult(exit_code=0, stdout="", stderr="")
    fake_agent.on_command("sleep", slept, seconds=30)
    editor = Editor()
    async with agent_for(client, editor, door) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        async with asyncio.timeout(20), asyncio.TaskGroup() as group:
            turn = group.create_task(prompt(connection, session_id, run("sleep 30")))
            await editor.told.wait()
            await connection.cancel(session_id=session_id)
        assert turn.result() == "cancelled"


async def test_a_turn_that_is_cancelled_while_its_sandbox_wakes_tells_the_agent_nothing(
    client: Client, fake_world: FakeWorld
) -> None:
    async with agent_for(client, Editor()) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        sandbox_id = (await client.conversation(session_id))["sandbox_id"]
        await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
        await client.wait_for_sandbox(sandbox_id, "PAUSED")
        fake_world.unreachable = True
        async with asyncio.TaskGroup() as group:
            turn = group.create_task(prompt(connection, session_id, "[script:say]"))
            await client.wait_for_sandbox(sandbox_id, "STARTING")
            await connection.cancel(session_id=session_id)
            fake_world.unreachable = False
        assert turn.result() == "cancelled"
    assert [one["kind"] for one in await client.events(session_id)].count("MessageEvent") == 0


async def test_of_a_file_that_is_no_text_the_agent_is_told_the_name(client: Client) -> None:
    blob = acp.embedded_blob_resource("file:///plan.pdf", "JVBERi0=")
    async with agent_for(client, Editor()) as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        await connection.prompt(
            session_id=session_id,
            prompt=[acp.text_block("[script:say] Look:"), acp.resource_block(blob)],
        )
    [asked, *_] = [one for one in await client.events(session_id) if one["kind"] == "MessageEvent"]
    assert asked["llm_message"]["content"][-1]["text"].endswith("file:///plan.pdf")


@pytest.mark.parametrize("door", DOORS)
async def test_what_cannot_be_done_is_an_error_and_the_agent_goes_on(
    client: Client, door: str
) -> None:
    async with agent_for(client, Editor(), door) as connection:
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


async def test_an_editor_elsewhere_goes_on_in_a_new_connection_without_a_gap(
    client: Client, service: Service, fake_agent: FakeAgent
) -> None:
    first, second, third = Editor(), Editor(), Editor()
    async with agent_for(client, first, "socket") as connection:
        session_id = (await connection.new_session(cwd="/", mcp_servers=[])).session_id
        assert await prompt(connection, session_id, run("echo one")) == "end_turn"
        # What the agent does while nobody is connected is in the conversation.
        fake_agent.may_run.clear()
        async with asyncio.TaskGroup() as group:
            lost = group.create_task(reason_of(prompt(connection, session_id, run("echo two"))))
            await client.wait_for_execution(session_id, "running")
            await service.restart()
        assert "close" in lost.result().lower()
    fake_agent.may_run.set()
    await client.wait_for_execution(session_id, "finished")
    async with agent_for(client, second, "socket") as connection:
        await connection.resume_session(session_id=session_id, cwd="/", mcp_servers=[])
        assert second.updates == []
        assert await prompt(connection, session_id, "[script:say]") == "end_turn"
        assert second.texts("user_message_chunk") == []
    async with agent_for(client, third, "socket") as connection:
        await connection.load_session(session_id=session_id, cwd="/", mcp_servers=[])
        said = [run("echo one"), run("echo two"), "[script:say]"]
        assert third.texts("user_message_chunk") == said
        assert third.kinds.count("tool_call") == third.kinds.count("tool_call_update") == 2
        await connection.list_sessions()


async def test_the_socket_does_what_its_key_may_do(client: Client, service: Service) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with remote_agent(service.client_with(None), Editor()):
            pass
    assert refused.value.response.status_code == 401
    async with agent_for(await service.make_client("ann", Role.VIEWER), Editor(), "socket") as one:
        assert (await one.list_sessions()).sessions == []
        assert "may only read" in await reason_of(one.new_session(cwd="/", mcp_servers=[]))
    assert (await client.get("/acp")).status == 400
    order = {"repository": "octocat/hello-world", "branch": "main"}
    async with remote_agent(client, Editor(), **order) as connection:
        await connection.initialize(protocol_version=acp.PROTOCOL_VERSION)
        await connection.new_session(cwd="/", mcp_servers=[])
    [found] = (await client.get("/api/v1/app-conversations/start-tasks/search")).json()["items"]
    assert found["request"]["selected_repository"] == "octocat/hello-world"


async def test_an_editor_is_cut_off_with_its_key(service: Service) -> None:
    other = await service.make_client("ann", Role.MEMBER)
    [key] = (await other.get("/api/keys")).json()
    async with agent_for(other, Editor(), "socket") as connection:
        assert (await connection.list_sessions()).sessions == []
        await service.app[KEYRING].revoke_key(key["id"])
        async with asyncio.timeout(20):
            while "close" not in (await reason_of(connection.list_sessions())).lower():
                pass


async def test_one_user_has_so_many_editors_connected_and_one_editor_so_much_at_work(
    client: Client, service: Service
) -> None:
    section = {"enabled": True, "connections_per_user": 1}
    extensions = {**service.config.extensions, "acp_agent": section}
    service.config = msgspec.structs.replace(service.config, extensions=extensions)
    await service.restart()
    async with agent_for(client, Editor(), "socket"):
        with pytest.raises(InvalidStatus) as refused:
            async with remote_agent(client, Editor()):
                pass
        assert refused.value.response.status_code == 429
    async with asyncio.timeout(20), aiohttp.ClientSession() as http:
        headers = {"X-Session-API-Key": client.key or ""}
        async with http.ws_connect(f"{client.base_url}/acp", headers=headers) as socket:
            for number in range(100):
                body = {"jsonrpc": "2.0", "id": number, "method": "session/new", "params": {}}
                await socket.send_json(body)
            await socket.send_str("no JSON")
            codes: set[int] = set()
            while codes != {-32000, -32700}:
                answer = await socket.receive_json()
                if answer.get("error"):
                    codes.add(answer["error"]["code"])


async def test_an_editor_that_reads_nothing_has_no_more_threads_than_places(client: Client) -> None:
    before = threading.active_count()
    headers = {"X-Session-API-Key": client.key or ""}
    async with (
        aiohttp.ClientSession() as http,
        http.ws_connect(f"{client.base_url}/acp", headers=headers, max_msg_size=0) as socket,
    ):
        socket.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_RCVBUF, 65536)
        # What it sends comes back, and the client takes in only the first answer.
        for number in ["x" * 9 * 1024 * 1024] * 2 + ["x"] * 200:
            await socket.send_json({"jsonrpc": "2.0", "id": number, "method": "nothing"})
            await asyncio.sleep(0.002)
        assert threading.active_count() - before < 50
        answer = await socket.receive_json()
        assert len(answer["id"]) == 9 * 1024 * 1024


class Sending:
    """The socket of an editor that sends the same without an end; `count` is how often."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.count = 0

    async def __aiter__(self) -> AsyncIterator[aiohttp.WSMessage]:
        while self.count < 1000:
            self.count += 1
            yield aiohttp.WSMessage(aiohttp.WSMsgType.TEXT, self._text, None)


@pytest.mark.parametrize(("size", "most"), [(9 * 1024 * 1024, 8), (1, 257)])
async def test_no_more_of_an_editor_waits_than_there_is_room_for(size: int, most: int) -> None:
    inbox, sending = Inbox(), Sending("x" * size)
    await receive(cast("web.WebSocketResponse", sending), inbox)
    assert sending.count == most
    inbox.end()
    assert [len(line) for line in inbox] == [size] * most
    # What was taken is not counted any more.
    await receive(cast("web.WebSocketResponse", sending), inbox)
    assert sending.count == 2 * most


class BrokenOff:
    """Answers as a server does whose agent was interrupted within a message, and then says another."""

    def __init__(self) -> None:
        broken_off = [delta("Half of a"), state("paused")]
        whole = [delta("Whole"), said("Whole"), state("finished")]
        self.streams = [[READY], [READY], broken_off, [READY], whole]

    def call(self, _method: str, _path: str, **_sent: Any) -> list[dict[str, str]]:
        return [{"id": "0" * 32, "sandbox_id": "1", "sandbox_status": "RUNNING"}]

    def stream(self, *_: object, **_more: object) -> list[StreamMessage]:
        return self.streams.pop(0)


READY = StreamMessage(type="ready", id=None, data={})


def delta(text: str) -> StreamMessage:
    return StreamMessage(type="delta", id=None, data={"content": text})


def state(value: str) -> StreamMessage:
    return StreamMessage(type="event", id=None, data={"key": "execution_status", "value": value})


def said(text: str) -> StreamMessage:
    message = {"content": [{"type": "text", "text": text}]}
    event = {"kind": "MessageEvent", "source": "agent", "llm_message": message}
    return StreamMessage(type="event", id=None, data=event)


def test_a_message_after_one_that_was_broken_off_is_told_once() -> None:
    api: Any = BrokenOff()
    lines: list[bytes] = []
    agent = Agent(api, Connection([], lines.append), OrderQuery())
    agent.answer("session/load", {"sessionId": "0" * 32})
    for text in ("one", "two"):
        asked = [{"type": "text", "text": text}]
        assert agent.answer("session/prompt", {"sessionId": "0" * 32, "prompt": asked})
    told = [msgspec.json.decode(line)["params"]["update"]["content"]["text"] for line in lines]
    assert told == ["Half of a", "Whole"]
