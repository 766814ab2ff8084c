"""Replays: what their agents are told, and when the language model takes over.

The fake agent asks no language model, so the tests ask in its place.
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from agentsvc.conversations.replay_script import AskedCall, AskedMessage, find_turn
from agentsvc.domain import RecordedStep
from agentsvc.testing.llm import Playbook, call, say
from tests.fake_conversation import FakeConversation
from tests.service import Answer, Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually

PATH = "/api/conversations"
TOOLS = [{"type": "function", "function": {"name": "terminal", "parameters": {}}}]


def user(text: str) -> dict[str, Any]:
    return {"action": "message", "source": "user", "args": {"content": text}}


def run(command: str) -> dict[str, Any]:
    return {"action": "run", "source": "agent", "args": {"command": command}}


FINISH: dict[str, Any] = {"action": "finish", "source": "agent", "args": {}}


@pytest.fixture(autouse=True)
def busy_agent(fake_agent: TroubledAgent) -> None:
    """Let the agent be at work for as long as a test wants."""
    fake_agent.playbook = Playbook((say("", delay_seconds=3600),))


class Replay:
    """A conversation that is being replayed, seen from its sandbox."""

    def __init__(
        self, client: Client, service: Service, fake_agent: TroubledAgent, name: str
    ) -> None:
        self.name = name
        self.client = client
        self.service = service
        self.agent = fake_agent

    @property
    def conversation(self) -> FakeConversation:
        return self.agent.conversation_of(self.name)

    @property
    def llm(self) -> dict[str, Any]:
        llm: dict[str, Any] = self.conversation.body["agent"]["llm"]
        return llm

    async def ask(self, *given: int, tools: Sequence[Any] | None = TOOLS) -> Answer:
        """Ask for a turn, as an agent that was given these turns before."""
        messages = [{"role": "assistant", "tool_calls": [{"id": f"replay_{at}_0"}]} for at in given]
        path = f"/api/v1/webhooks/replays/{self.name}/chat/completions"
        asker = self.service.client_with(self.key)
        return await asker.post(path, json={"model": "m", "messages": messages, "tools": tools})

    @property
    def key(self) -> str:
        [sandbox] = self.agent.sandboxes.values()
        return sandbox.key

    def did(self, at: int) -> None:
        """Write down that the agent did a recorded turn."""
        self.conversation.add("ActionEvent", "agent", tool_call_id=f"replay_{at}_0", action={})

    async def rests(self) -> None:
        """Let the agent end its run."""
        self.conversation.interrupt()
        await eventually(lambda: self.conversation.status != "running")

    def said(self) -> list[str]:
        events = [one for one in self.conversation.events if one["kind"] == "MessageEvent"]
        return [
            one["llm_message"]["content"][0]["text"] for one in events if one["source"] == "user"
        ]

    async def status(self) -> str:
        found = (await self.client.get(f"{PATH}/{self.name}")).json()
        return str(found["status"])

    async def ends(self, status: str = "READY") -> str:
        """Wait for the end of the start and return what is said about it."""
        path = f"/api/v1/app-conversations/start-tasks/search?conversation_id__eq={self.name}"
        [task] = (await self.client.get(path)).json()["items"]
        ended = await self.client.end_of_start(task["id"])
        assert ended["status"] == status, ended["detail"]
        return str(ended["detail"])


async def start(
    client: Client,
    service: Service,
    fake_agent: TroubledAgent,
    *events: dict[str, Any],
    status: str = "running",
    **fields: Any,
) -> Replay:
    answer = await client.post(PATH, json={"replay_json": json.dumps(events), **fields})
    assert answer.status == 200, answer.text
    replay = Replay(client, service, fake_agent, answer.json()["conversation_id"])
    await eventually(lambda: fake_agent.find_conversation(replay.name) is not None)
    await eventually(lambda: replay.conversation.status == status)
    return replay


def command_of(answer: Answer) -> str:
    [choice] = answer.json()["choices"]
    [call] = choice["message"]["tool_calls"]
    return str(msgspec.json.decode(call["function"]["arguments"])["command"])


async def test_the_recording_is_the_model_until_its_last_turn_is_given(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"), run("two"))
    assert replay.said() == ["begin"]
    assert (replay.llm["model"], replay.llm["api_key"]) == ("openai/replay", replay.key)
    assert command_of(await replay.ask()) == "one"
    assert command_of(await replay.ask()) == "one"
    assert replay.llm["model"] == "openai/replay"
    assert await replay.status() == "STARTING"
    assert command_of(await replay.ask(1)) == "two"
    assert (replay.llm["model"], replay.llm["api_key"]) == ("openai/scripted", "model-key-1")
    await replay.ends()
    answer = await replay.ask(1, 2)
    assert (answer.status, answer.json()["detail"]) == (404, "The recording is over")
    assert (await client.conversation(replay.name))["llm_model"] == "openai/scripted"


async def test_no_turn_is_given_before_the_model_is_in_place(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"))
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.fail_next(503, "/switch_llm")
    assert (await replay.ask()).status == 502
    assert command_of(await replay.ask()) == "one"
    await replay.ends()


async def test_what_the_user_said_behind_a_run_is_said_when_the_run_is_over(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(
        client,
        service,
        fake_agent,
        *(user("begin"), FINISH, user("again"), FINISH),
        initial_user_msg="go on",
    )
    await replay.ask()
    replay.did(1)
    await replay.rests()
    await eventually(lambda: replay.said() == ["begin", "again"])
    await replay.ask(1)
    assert replay.llm["model"] == "openai/scripted"
    replay.did(3)
    await replay.rests()
    await replay.ends()
    assert replay.said() == ["begin", "again", "go on"]


async def test_what_the_user_said_into_a_run_is_said_into_it(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(
        client, service, fake_agent, user("begin"), run("one"), user("faster"), run("two")
    )
    await replay.ask()
    await eventually(lambda: fake_agent.count(f"{replay.name}/events") > 0)
    assert replay.said() == ["begin"]
    replay.did(1)
    await replay.rests()
    await eventually(lambda: replay.said() == ["begin", "faster"])
    await replay.ask(1)
    await replay.ends()


async def test_a_replay_goes_on_after_a_restart_of_the_server(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"), run("two"))
    await replay.ask()
    replay.did(1)
    await service.restart()
    assert command_of(await replay.ask(1)) == "two"
    await replay.ends()
    assert fake_agent.started() >= 2
    assert replay.said() == ["begin"]


async def test_what_is_recorded_needs_no_second_confirmation(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    script = (call("terminal", command="one"), say("", delay_seconds=3600))
    fake_agent.playbook = Playbook(script)
    await client.save_settings(confirmation_mode=True)
    events = (user("begin"), run("one"), run("two"))
    replay = await start(client, service, fake_agent, *events, status="waiting_for_confirmation")
    replay.did(1)
    await eventually(lambda: fake_agent.count("/events/respond_to_confirmation") > 0)
    await replay.ask(1)
    await replay.ends()


async def test_a_confirmation_that_is_under_way_at_a_restart_is_not_given_twice(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    script = (call("terminal", command="one"), say("", delay_seconds=3600))
    fake_agent.playbook = Playbook(script)
    await client.save_settings(confirmation_mode=True)
    events = (user("begin"), run("one"), run("two"))
    fake_agent.hold("confirmation")
    replay = await start(client, service, fake_agent, *events, status="waiting_for_confirmation")
    replay.did(1)
    await fake_agent.waits("confirmation")
    # The agent server has read it and made nothing of it yet; it does the one after the other.
    fake_agent.hold("secrets")
    await service.restart()
    await fake_agent.waits("secrets")
    fake_agent.held.pop("confirmation").set()
    await replay.ask(1)
    await eventually(lambda: replay.conversation.status == "running")
    await replay.rests()
    fake_agent.let_go()
    await replay.ends()
    assert fake_agent.count("/events/respond_to_confirmation") == 1


async def test_an_agent_that_stands_still_is_set_going(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), FINISH, run("one"))
    await replay.ask()
    replay.did(1)
    await replay.rests()
    await eventually(lambda: fake_agent.count("/run") > 0)
    await replay.ask(1)
    await replay.ends()


async def test_a_replay_that_breaks_is_a_failed_start(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"), run("two"))
    replay.did(1)
    await replay.rests()
    replay.conversation.set_status("stuck")
    detail = await replay.ends("ERROR")
    assert "The replay ended in the state `stuck` at step 2 of 3" in detail


async def test_an_agent_server_that_is_away_for_a_while_ends_no_replay(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"))
    [sandbox] = fake_agent.sandboxes.values()
    sandbox.fail_next(503, f"/{replay.name}", times=3)
    await eventually(lambda: not sandbox.failures)
    await replay.ask()
    await replay.ends()


async def test_a_sandbox_that_fails_ends_the_replay(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"))
    [sandbox_id] = fake_world.sandboxes
    fake_agent.crash(sandbox_id)
    fake_world.end(sandbox_id)
    assert "The sandbox failed" in await replay.ends("ERROR")


async def test_a_conversation_may_be_deleted_while_it_is_replayed(
    client: Client, service: Service, fake_agent: TroubledAgent, fake_world: TroubledWorld
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"))
    assert (await client.delete(f"{PATH}/{replay.name}")).json() is True
    await eventually(lambda: not fake_world.sandboxes)


async def test_who_asks_for_a_title_gets_the_first_message(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin\nand end"), run("one"))
    [choice] = (await replay.ask(tools=None)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": "begin"}


async def test_only_the_sandbox_of_a_replay_is_answered(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    replay = await start(client, service, fake_agent, user("begin"), run("one"))
    other_id = (await client.post("/api/v1/sandboxes")).json()["id"]
    other = await client.wait_for_sandbox(other_id, "RUNNING")
    path = f"/api/v1/webhooks/replays/{replay.name}/chat/completions"
    body = {"model": "m", "messages": [], "tools": TOOLS}
    for key, status in ((other["session_api_key"], 404), (client.key, 401), (None, 401)):
        assert (await service.client_with(key).post(path, json=body)).status == status


async def test_nothing_is_replayed_in_an_ordinary_conversation(
    client: Client, service: Service, fake_agent: TroubledAgent
) -> None:
    name = await client.start_conversation(None)
    answer = await Replay(client, service, fake_agent, name).ask()
    assert answer.json()["detail"] == "Nothing is replayed in this conversation"


@pytest.mark.parametrize("call_id", [f"replay_{'9' * 5_000}_0", "replay_٣_0", "call_1"])
def test_a_call_of_another_form_is_no_step(call_id: str) -> None:
    given = [AskedMessage(role="assistant", tool_calls=[AskedCall(id=call_id)])]
    assert find_turn([RecordedStep(text="one"), RecordedStep(text="two")], given) == 0
