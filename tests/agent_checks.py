"""What an agent server does, as checks that run on the fake one and on the real one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from agentsvc.agentserver.client import AgentServer
from agentsvc.agentserver.responses import ConversationInfo, GitDiff, tokens_of
from agentsvc.base.errors import AgentRefused, BadRequest, Conflict, NotFound
from agentsvc.base.values import Secret, new_id
from agentsvc.testing.llm import Script, call, fail, finish, say

SCRIPTS: dict[str, Script] = {
    "work": [
        call("terminal", command="echo one", text="I begin."),
        finish("All is done."),
    ],
    "say": [say("Only words.")],
    "slow": [call("terminal", command="sleep 0.5 && sleep 30"), finish("Too late.")],
    "long": [call("terminal", command=f"echo {number}") for number in range(30)],
    "risky": [
        call("terminal", command="echo safe", security_risk="LOW"),
        call("terminal", command="echo danger", security_risk="HIGH"),
        finish("Done."),
    ],
    "steps": [call("terminal", command="sleep 0.4") for _ in range(9)],
    "tool": [call("terminal", command="sleep 2"), finish("Too far.")],
    "refused": [fail(401)],
}
ENDED = ("finished", "error", "paused", "waiting_for_confirmation", "stuck")


class Rig:
    """An agent server and how to start conversations on it."""

    def __init__(self, server: AgentServer, *, model_url: str, model_key: str, path: str) -> None:
        self.server = server
        self._llm = {
            "usage_id": "agent",
            "model": "openai/scripted",
            "base_url": model_url,
            "api_key": model_key,
            "num_retries": 0,
            "input_cost_per_token": 1e-5,
            "output_cost_per_token": 1e-4,
        }
        self.path = path

    def body(self, text: str | None, **members: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "conversation_id": new_id(),
            "workspace": {"kind": "LocalWorkspace", "working_dir": self.path},
            "agent": {
                "kind": "Agent",
                "llm": self._llm,
                "tools": [{"name": "terminal"}, {"name": "file_editor"}],
            },
            **members,
        }
        if text is not None:
            content = [{"type": "text", "text": text}]
            body["initial_message"] = {"role": "user", "content": content}
        return body

    async def start(self, text: str, **members: Any) -> str:
        info = await self.server.start_conversation(self.body(text, **members))
        return info.hex_id

    async def until[T](self, look: Callable[[], Awaitable[T]]) -> T:
        """Look again and again until there is something to see, and return it."""
        async with asyncio.timeout(45):
            while True:
                if seen := await look():
                    return seen
                await asyncio.sleep(0.02)

    async def wait(self, conversation_id: str, *statuses: str) -> ConversationInfo:
        """Wait until the conversation has one of the statuses, by default any that lasts."""

        async def look() -> ConversationInfo | None:
            info = await self.server.find_conversation(conversation_id)
            assert info is not None
            return info if info.execution_status in (statuses or ENDED) else None

        found = await self.until(look)
        assert found is not None
        return found

    async def wait_for_kind(self, conversation_id: str, kind: str) -> dict[str, Any]:
        """Wait until there is an event of a kind and return the first one."""

        async def look() -> list[dict[str, Any]]:
            return [one for one in await self.events(conversation_id) if one["kind"] == kind]

        return (await self.until(look))[0]

    async def events(self, conversation_id: str, since: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        async for page in self.server.event_pages(conversation_id, since=since):
            assert len(page) <= 100
            found += [msgspec.json.decode(raw) for raw in page]
        return found

    async def story(self, conversation_id: str) -> list[str]:
        """Return the kinds of the events, without those that say how the state changed."""
        kinds = [event["kind"] for event in await self.events(conversation_id)]
        return [kind for kind in kinds if kind != "ConversationStateUpdateEvent"]


async def check_a_conversation_runs_to_its_end(rig: Rig) -> None:
    conversation_id = await rig.start("[script:work] go")
    info = await rig.wait(conversation_id)
    assert info.execution_status == "finished"
    assert info.hex_id == conversation_id
    assert info.agent.llm.model == "openai/scripted"
    assert await rig.story(conversation_id) == [
        "SystemPromptEvent",
        "MessageEvent",
        "ActionEvent",
        "ObservationEvent",
        "ActionEvent",
        "ObservationEvent",
    ]


async def check_what_a_run_cost_is_counted(rig: Rig) -> None:
    conversation_id = await rig.start("[script:work] go", autotitle=False)
    info = await rig.wait(conversation_id)
    assert info.stats is not None
    assert info.stats.accumulated_cost == pytest.approx(2 * (1000 * 1e-5 + 100 * 1e-4))
    assert tokens_of(info.stats.usage_to_metrics.values()).prompt_tokens == 2000
    states = [e for e in await rig.events(conversation_id) if e.get("key") == "stats"]
    metrics = states[-1]["value"]["usage_to_metrics"]["agent"]
    assert metrics["accumulated_cost"] == pytest.approx(info.stats.accumulated_cost)


async def check_the_model_gives_the_title(rig: Rig) -> None:
    conversation_id = await rig.start("[script:work] go")

    async def title() -> str | None:
        return (await rig.wait(conversation_id)).title

    assert "conversation" in (await rig.until(title) or "")


async def check_words_alone_end_a_run(rig: Rig) -> None:
    conversation_id = await rig.start("[script:say] go")
    assert (await rig.wait(conversation_id)).execution_status == "finished"
    assert (await rig.story(conversation_id))[-1] == "MessageEvent"


async def check_the_same_id_twice_gives_one_conversation(rig: Rig) -> None:
    body = rig.body("[script:say] go")
    first = await rig.server.start_conversation(body)
    await rig.wait(first.id)
    second = await rig.server.start_conversation(msgspec.json.encode(body))
    assert second.id == first.id
    assert second.execution_status == "finished"


async def check_an_unknown_conversation_is_not_found(rig: Rig) -> None:
    assert await rig.server.find_conversation(new_id()) is None
    with pytest.raises(NotFound):
        await rig.events(new_id())
    with pytest.raises(NotFound):
        await rig.server.run(new_id())


async def check_delete_may_be_repeated(rig: Rig) -> None:
    conversation_id = await rig.start("[script:say] go")
    await rig.wait(conversation_id)
    await rig.server.delete_conversation(conversation_id)
    await rig.server.delete_conversation(conversation_id)
    assert await rig.server.find_conversation(conversation_id) is None


async def check_a_message_after_the_end_starts_a_new_run(rig: Rig) -> None:
    conversation_id = await rig.start("[script:work] go")
    await rig.wait(conversation_id)
    content = [{"type": "text", "text": "[script:say] again"}]
    await rig.server.send_message(conversation_id, content, run=True)

    async def has_answered() -> bool:
        return (await rig.story(conversation_id)).count("MessageEvent") == 3

    await rig.until(has_answered)
    assert (await rig.wait(conversation_id)).execution_status == "finished"


async def check_a_message_without_run_only_waits(rig: Rig) -> None:
    body = rig.body(None)
    conversation_id = (await rig.server.start_conversation(body)).hex_id
    content = [{"type": "text", "text": "[script:say] later"}]
    await rig.server.send_message(conversation_id, content, run=False)
    info = await rig.server.find_conversation(conversation_id)
    assert info is not None
    assert info.execution_status == "idle"
    await rig.server.run(conversation_id)
    assert (await rig.wait(conversation_id)).execution_status == "finished"


async def check_an_accepted_action_happens(rig: Rig) -> None:
    policy = {"kind": "AlwaysConfirm"}
    conversation_id = await rig.start("[script:work] go", confirmation_policy=policy)
    assert (await rig.wait(conversation_id)).execution_status == "waiting_for_confirmation"
    await rig.server.respond_to_confirmation(conversation_id, accept=True)
    assert (await rig.wait(conversation_id, "finished")).execution_status == "finished"
    assert "ObservationEvent" in await rig.story(conversation_id)


async def check_after_a_rejection_the_agent_is_idle(rig: Rig) -> None:
    policy = {"kind": "AlwaysConfirm"}
    conversation_id = await rig.start("[script:work] go", confirmation_policy=policy)
    await rig.wait(conversation_id)
    await rig.server.respond_to_confirmation(conversation_id, accept=False, reason="not this")
    await rig.wait(conversation_id, "idle")
    rejection = await rig.wait_for_kind(conversation_id, "UserRejectObservation")
    assert rejection["rejection_reason"] == "not this"


async def check_only_risky_actions_need_an_answer(rig: Rig) -> None:
    conversation_id = await rig.start(
        "[script:risky] go",
        confirmation_policy={"kind": "ConfirmRisky"},
        security_analyzer={"kind": "LLMSecurityAnalyzer"},
    )
    assert (await rig.wait(conversation_id)).execution_status == "waiting_for_confirmation"
    actions = [e for e in await rig.events(conversation_id) if e["kind"] == "ActionEvent"]
    assert [action["security_risk"] for action in actions] == ["LOW", "HIGH"]


async def check_an_interrupt_ends_a_command_at_once(rig: Rig) -> None:
    conversation_id = await rig.start("[script:slow] go")
    await rig.wait_for_kind(conversation_id, "ActionEvent")
    # Sooner than the command ends by itself.
    async with asyncio.timeout(25):
        await rig.server.interrupt(conversation_id)
        await rig.wait(conversation_id, "paused")
    await rig.wait_for_kind(conversation_id, "InterruptEvent")
    assert (await rig.story(conversation_id))[-2:] == ["AgentErrorEvent", "InterruptEvent"]


async def check_a_pause_lets_the_step_end(rig: Rig) -> None:
    conversation_id = await rig.start("[script:steps] go")
    await rig.wait_for_kind(conversation_id, "ActionEvent")
    await rig.server.pause(conversation_id)
    await rig.wait(conversation_id, "paused")
    await rig.wait_for_kind(conversation_id, "PauseEvent")
    story = await rig.story(conversation_id)
    assert story[-2:] == ["ObservationEvent", "PauseEvent"]
    assert story.count("ActionEvent") < 9


async def check_a_message_before_a_pause_does_not_set_it_going_behind(rig: Rig) -> None:
    conversation_id = await rig.start("[script:tool] go")
    await rig.wait_for_kind(conversation_id, "ActionEvent")
    content = [{"type": "text", "text": "[script:say] go"}]
    async with asyncio.TaskGroup() as group:
        group.create_task(rig.server.send_message(conversation_id, content, run=True))
        await asyncio.sleep(0.5)
        group.create_task(rig.server.pause(conversation_id))
    await rig.wait(conversation_id, "paused")
    await asyncio.sleep(0.5)
    assert (await rig.wait(conversation_id)).execution_status == "paused"
    story = await rig.story(conversation_id)
    assert [story.count(kind) for kind in ("MessageEvent", "PauseEvent")] == [2, 1]


async def check_the_model_can_be_switched(rig: Rig) -> None:
    conversation_id = (await rig.server.start_conversation(rig.body(None))).hex_id
    llm = {**rig.body(None)["agent"]["llm"], "model": "openai/other", "usage_id": "profile:x:1"}
    await rig.server.switch_llm(conversation_id, llm, hide=[Secret(llm["api_key"])])
    content = [{"type": "text", "text": "[script:say] go"}]
    await rig.server.send_message(conversation_id, content, run=True)
    assert (await rig.wait(conversation_id)).agent.llm.model == "openai/other"
    with pytest.raises(NotFound):
        await rig.server.switch_llm(new_id(), llm)


async def check_earlier_changes_can_be_waited_for(rig: Rig) -> None:
    conversation_id = await rig.start("[script:say] go")
    await rig.wait(conversation_id)
    await rig.server.wait_for_earlier_changes(conversation_id)
    with pytest.raises(NotFound):
        await rig.server.wait_for_earlier_changes(new_id())


async def check_a_running_conversation_cannot_be_run(rig: Rig) -> None:
    conversation_id = await rig.start("[script:slow] go")
    await rig.wait_for_kind(conversation_id, "ActionEvent")
    with pytest.raises(Conflict, match="already running"):
        await rig.server.run(conversation_id)
    await rig.server.interrupt(conversation_id)


async def check_the_iteration_limit_is_an_error(rig: Rig) -> None:
    conversation_id = await rig.start("[script:long] go", max_iterations=2)
    assert (await rig.wait(conversation_id)).execution_status == "error"
    error = await rig.wait_for_kind(conversation_id, "ConversationErrorEvent")
    assert error["code"] == "MaxIterationsReached"


async def check_a_refused_model_key_is_an_error(rig: Rig) -> None:
    conversation_id = await rig.start("[script:refused] go")
    assert (await rig.wait(conversation_id)).execution_status == "error"
    error = await rig.wait_for_kind(conversation_id, "ConversationErrorEvent")
    assert error["code"] == "LLMAuthenticationError"


async def check_a_conversation_needs_a_model(rig: Rig) -> None:
    body = rig.body("go")
    body["agent"] = {**body["agent"], "llm": {**body["agent"]["llm"], "model": ""}}
    with pytest.raises(AgentRefused, match="model must be specified"):
        await rig.server.start_conversation(body)


async def check_events_come_in_pages_without_a_gap(rig: Rig) -> None:
    conversation_id = await rig.start("[script:long] go")
    await rig.wait(conversation_id)
    events = await rig.events(conversation_id)
    assert len(events) > 90
    ids = [event["id"] for event in events]
    assert len(set(ids)) == len(ids)
    times = [event["timestamp"] for event in events]
    assert times == sorted(times)


async def check_events_can_be_read_from_a_time_on(rig: Rig) -> None:
    conversation_id = await rig.start("[script:work] go")
    await rig.wait(conversation_id)
    await asyncio.sleep(0.1)
    events = await rig.events(conversation_id)
    later = await rig.events(conversation_id, since=events[3]["timestamp"])
    assert [event["id"] for event in later] == [event["id"] for event in events[3:]]


async def check_the_server_names_its_tools_and_home(rig: Rig) -> None:
    tools = await rig.server.usable_tools()
    assert tools is not None
    assert {"terminal", "file_editor", "task_tracker"} <= set(tools)
    assert (await rig.server.home()).startswith("/")
    assert await rig.server.is_alive()


async def check_an_uploaded_file_comes_back(rig: Rig) -> None:
    path = f"{rig.path}/{new_id()}/a file.bin"
    await rig.server.upload(path, b"\x00\xff data")
    assert await rig.server.download(path) == b"\x00\xff data"
    with pytest.raises(NotFound):
        await rig.server.download(path + ".none")
    with pytest.raises(AgentRefused, match="absolute"):
        await rig.server.download("a file.bin")


async def check_outside_of_a_repository_nothing_differs(rig: Rig) -> None:
    # A conversation makes the directory it works in a repository.
    path = f"{rig.path}-{new_id()}"
    await rig.server.upload(f"{path}/a file", b"text")
    assert await rig.server.git_changes(path) == []
    assert await rig.server.git_changes(path, ref="no-such-ref") == []
    assert await rig.server.git_diff(f"{path}/a file") == GitDiff(modified=None, original=None)
    with pytest.raises(BadRequest, match="no such file"):
        await rig.server.git_diff(f"{path}/none")


type Check = Callable[[Rig], Awaitable[None]]

CHECKS: dict[str, Check] = {
    name.removeprefix("check_"): check
    for name, check in dict(globals()).items()
    if name.startswith("check_")
}
