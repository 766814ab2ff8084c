"""Conversations on the real agent server, through both generations of the API."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from agentsvc.base.values import new_id
from tests.live.client import LiveClient
from tests.live.events import errors, finishes, outputs, said, states
from tests.live.installation import Installation, eventually
from tests.live.scripts import DONE, run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_a_conversation_of_v1_runs_to_its_end_and_is_seen_through_v0(
    client: LiveClient, shared: Installation
) -> None:
    conversation_id = await client.start_conversation(run("echo $((6 * 7)) > answer", "cat answer"))
    seen = await client.wait_for_execution(conversation_id, "finished")
    assert seen["sandbox_status"] == "RUNNING"
    assert seen["metrics"]["accumulated_token_usage"]["prompt_tokens"] == 3000
    events = await client.events(conversation_id)
    assert outputs(events) == ["", "42"]
    assert len({event["id"] for event in events}) == len(events)
    work = shared.sandbox_dir(seen["sandbox_id"]) / "workspace"
    assert (work / "answer").read_text() == "42\n"

    old = (await client.get(f"/api/conversations/{conversation_id}")).json()
    assert (old["status"], old["title"]) == ("RUNNING", seen["title"])
    history = await client.history(conversation_id)
    assert [event["id"] for event in history] == list(range(len(history)))
    assert [event["args"]["command"] for event in history if event.get("action") == "run"] == [
        "echo $((6 * 7)) > answer",
        "cat answer",
    ]
    titled = await client.wait_for_conversation(
        conversation_id, lambda one: not one["title"].startswith("Conversation ")
    )
    assert titled["title"] == "✨ A scripted conversation"
    assert titled["metrics"] == seen["metrics"]


async def test_a_conversation_of_v0_runs_to_its_end_and_is_seen_through_v1(
    client: LiveClient,
) -> None:
    answer = await client.post(
        "/api/conversations",
        json={"initial_user_msg": run("echo from-v0"), "conversation_instructions": "Be like Ada."},
    )
    assert answer.status == 200, answer.text
    started = answer.json()
    assert (started["status"], started["conversation_status"]) == ("ok", "STARTING")
    conversation_id = started["conversation_id"]
    filters = f"conversation_id__eq={conversation_id}"
    found = await client.get(f"/api/v1/app-conversations/start-tasks/search?{filters}")
    task = await client.end_of_start(found.json()["items"][0]["id"])
    assert (task["status"], task["app_conversation_id"]) == ("READY", conversation_id)
    await client.wait_for_execution(conversation_id, "finished")
    history = await client.history(conversation_id)
    assert "from-v0" in [event.get("content") for event in history]
    assert states(history)[-1] == "finished"

    assert outputs(await client.events(conversation_id)) == ["from-v0"]
    [asked, *_] = client.asked("echo from-v0")
    assert "Be like Ada." in str(asked["messages"][0])


async def test_a_planner_works_in_the_sandbox_of_the_conversation_it_plans_for(
    client: LiveClient, sandbox_id: str
) -> None:
    parent_id = await client.start_conversation("[script:say]", sandbox_id=sandbox_id)
    child_id = await client.start_conversation(
        "[script:say]", parent_conversation_id=parent_id, agent_type="plan"
    )
    child = await client.wait_for_execution(child_id, "finished")
    assert child["sandbox_id"] == sandbox_id
    assert child["parent_conversation_id"] == parent_id
    assert (await client.conversation(parent_id))["sub_conversation_ids"] == [child_id]
    places, tools = [], []
    for one in (parent_id, child_id):
        info = (await client.agent(child).get(f"/api/conversations/{one}")).json()
        places.append(info["workspace"]["working_dir"])
        tools.append({tool["name"] for tool in info["agent"]["tools"]})
    assert places[0] == places[1]
    assert "terminal" in tools[0]
    assert tools[1] == {"glob", "grep", "planning_file_editor"}


async def test_an_accepted_action_is_carried_out(client: LiveClient, sandbox_id: str) -> None:
    await client.save_settings(confirmation_mode=True)
    conversation_id = await client.start_conversation(run("echo accepted"), sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    assert outputs(await client.events(conversation_id)) == []
    history = await client.history(conversation_id)
    assert states(history)[-1] == "awaiting_user_confirmation"

    await client.respond(conversation_id, accept=True)
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id)) == ["accepted"]
    assert "user_confirmed" in states(await client.history(conversation_id))


async def test_a_rejected_action_is_not_carried_out(
    client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    await client.save_settings(confirmation_mode=True)
    mark = shared.at_home(f"mark-{new_id()}")
    conversation_id = await client.start_conversation(run(f"touch {mark}"), sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")

    await client.respond(conversation_id, accept=False, reason="Not that.")
    await client.wait_for_execution(conversation_id, "idle")
    [rejected] = await client.until_kind(conversation_id, "UserRejectObservation")
    assert rejected["rejection_reason"] == "Not that."
    assert "user_rejected" in states(await client.history(conversation_id))

    await client.send(conversation_id, "[script:say] Then talk.")
    await client.wait_for_execution(conversation_id, "finished")
    assert not mark.exists()


async def test_only_risky_actions_wait_where_the_model_rates_them(
    client: LiveClient, sandbox_id: str
) -> None:
    await client.save_settings(confirmation_mode=True, security_analyzer="llm")
    conversation_id = await client.start_conversation("[script:risky]", sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "waiting_for_confirmation")
    assert outputs(await client.events(conversation_id)) == ["safe"]
    await client.respond(conversation_id, accept=True)
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id)) == ["safe", "danger"]


async def test_an_interrupted_run_stops_at_once_and_can_go_on(
    client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    begun = shared.at_home(f"begun-{new_id()}")
    text = run(f"touch {begun}; sleep 60", "echo never")
    conversation_id = await client.start_conversation(text, sandbox_id=sandbox_id)
    await eventually(begun.exists, "the command runs")
    agent = client.agent(await client.wait_for_execution(conversation_id, "running"))
    answered = await agent.post(f"/api/conversations/{conversation_id}/interrupt")
    assert answered.status == 200, answered.text
    await client.wait_for_execution(conversation_id, "paused", time_limit=30)
    assert len(await client.until_kind(conversation_id, "InterruptEvent")) == 1
    assert states(await client.history(conversation_id))[-1] == "paused"

    await client.send(conversation_id, run("echo goes on"))
    await client.wait_for_execution(conversation_id, "finished")
    assert outputs(await client.events(conversation_id))[-1] == "goes on"


async def test_a_message_after_the_end_sets_the_agent_to_work_again(
    client: LiveClient, sandbox_id: str
) -> None:
    text = run("export STATE=kept; cd /")
    conversation_id = await client.start_conversation(text, sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")

    await client.send(conversation_id, run('echo "$STATE $PWD"'))
    await client.until(conversation_id, lambda events: len(finishes(events)) == 2)
    answered = await client.post(
        f"/api/conversations/{conversation_id}/message", json={"message": run("echo by V0")}
    )
    assert answered.status == 200, answered.text
    events = await client.until(conversation_id, lambda events: len(finishes(events)) == 3)
    assert outputs(events) == ["", "kept /", "by V0"]
    assert finishes(events) == [DONE] * 3
    assert len(said(events, "user")) == 3
    await client.wait_for_execution(conversation_id, "finished")


async def test_a_run_is_stopped_at_its_budget(client: LiveClient, sandbox_id: str) -> None:
    # The agent's library knows what this one costs; 1,000 tokens in and 100 out are 0.0035.
    await client.save_settings(llm_model="openai/gpt-4o", max_budget_per_task=0.01)
    # What another try of this test has left may still be at work.
    costly = f"echo costly-{new_id()}"
    text = run(*[f"sleep 1.5; {costly}"] * 20)
    conversation_id = await client.start_conversation(text, sandbox_id=sandbox_id)
    seen = await client.wait_for_execution(conversation_id, "paused")
    metrics = seen["metrics"]
    assert metrics["max_budget_per_task"] == 0.01
    # What a step has cost is told after it, when others may have begun; all 20 would cost 0.07.
    assert 0.01 <= metrics["accumulated_cost"] < 0.035
    # A cost that is told while the run is being stopped is said to be over the budget as well.
    stops = errors(await client.events(conversation_id))
    assert {stop["code"] for stop in stops} == {"MaxBudgetReached"}
    assert "max_budget_per_task" in stops[0]["detail"]

    asked = len(client.asked(costly))
    await asyncio.sleep(2)
    assert len(client.asked(costly)) == asked
    await client.send(conversation_id, run(*["sleep 1.5"] * 20))
    events = await client.until(conversation_id, lambda events: len(errors(events)) > len(stops))
    assert finishes(events) == []
    await client.wait_for_execution(conversation_id, "paused")


async def test_a_run_ends_at_the_iteration_limit(client: LiveClient, sandbox_id: str) -> None:
    await client.save_settings(max_iterations=3)
    text = run(*[f"echo {number}" for number in range(9)])
    conversation_id = await client.start_conversation(text, sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "error")
    events = await client.until(conversation_id, lambda events: len(errors(events)) == 1)
    assert outputs(events) == ["0", "1", "2"]
    assert errors(events)[0]["code"] == "MaxIterationsReached"


@pytest.mark.parametrize(
    ("settings", "condenser"),
    [
        ({"enable_default_condenser": False}, None),
        ({"condenser_max_size": 77}, {"kind": "LLMSummarizingCondenser", "max_size": 77}),
    ],
)
async def test_the_condenser_is_as_the_settings_say(
    client: LiveClient,
    sandbox_id: str,
    settings: dict[str, Any],
    condenser: dict[str, Any] | None,
) -> None:
    await client.save_settings(**settings)
    conversation_id = await client.start_conversation("[script:say]", sandbox_id=sandbox_id)
    seen = await client.conversation(conversation_id)
    info = (await client.agent(seen).get(f"/api/conversations/{conversation_id}")).json()
    found = info["agent"].get("condenser")
    assert (found and {name: found[name] for name in ("kind", "max_size")}) == condenser


async def test_the_agent_uses_a_tool_server_of_the_settings(
    client: LiveClient, sandbox_id: str
) -> None:
    program = Path(__file__).with_name("tool_server.py").read_text()
    server = {"name": "sums", "command": sys.executable, "args": ["-c", program]}
    config = {"stdio_servers": [{**server, "env": {"GREETING": "The sum is"}}]}
    await client.save_settings(mcp_config=config)
    conversation_id = await client.start_conversation("[script:tool]", sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")
    found = await client.until_kind(conversation_id, "ObservationEvent")
    assert "The sum is 42" in str(found[0]["observation"])


async def test_the_agent_sees_nothing_of_the_servers_environment(
    client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    assert "CANARY" in shared.environment
    conversation_id = await client.start_conversation(run("env"), sandbox_id=sandbox_id)
    await client.wait_for_execution(conversation_id, "finished")
    [printed] = outputs(await client.events(conversation_id))
    names = {line.partition("=")[0] for line in printed.splitlines()}
    assert "CANARY" not in names
    assert not [name for name in names if name.startswith("AGENTSVC_BOOTSTRAP")]
    assert shared.key.reveal() not in printed
    seen = await client.conversation(conversation_id)
    assert seen["session_api_key"] not in printed
    assert {"HOME", "PATH", "TMPDIR", "WORKER_1", "WORKER_2"} <= names
