"""A recorded conversation replayed by the real agent server, until the model takes over."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentsvc.base.values import new_id
from tests.live.client import LiveClient
from tests.live.events import finishes, outputs, said
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


def user(text: str) -> dict[str, Any]:
    return {"action": "message", "source": "user", "args": {"content": text}}


def act(action: str, **args: Any) -> dict[str, Any]:
    return {"action": action, "source": "agent", "args": args}


async def start(client: LiveClient, events: list[dict[str, Any]], **fields: Any) -> str:
    answer = await client.post(
        "/api/conversations", json={"replay_json": json.dumps({"trajectory": events}), **fields}
    )
    assert answer.status == 200, answer.text
    name: str = answer.json()["conversation_id"]
    found = await client.get(
        f"/api/v1/app-conversations/start-tasks/search?conversation_id__eq={name}"
    )
    ended = await client.end_of_start(found.json()["items"][0]["id"])
    assert ended["status"] == "READY", ended["detail"]
    return name


async def test_recorded_actions_are_done_again_and_the_model_goes_on_with_them_in_mind(
    client: LiveClient, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    name = await start(
        client,
        [
            {"observation": "agent_state_changed", "content": "", "extras": {}},
            user("Take notes."),
            act(
                "run",
                command=f"mkdir -p {tmp_path} && cd {tmp_path} && export WHO=Ada && echo in $PWD",
                thought="First.",
            ),
            {"observation": "run", "content": "in /elsewhere", "extras": {}},
            act("edit", command="create", path=str(file), file_text="one\n"),
            act("edit", command="str_replace", path=str(file), old_str="one", new_str="two"),
            act("finish", final_thought="Noted."),
            user("Sign them."),
            act("run", command="echo $WHO >> notes.txt"),
        ],
        initial_user_msg=run("cat notes.txt"),
    )
    await client.wait_for_execution(name, "finished")
    events = await client.events(name)
    assert outputs(events) == [f"in {tmp_path}", "", "two\nAda"]
    assert said(events, "user") == ["Take notes.", "Sign them.", run("cat notes.txt")]
    assert finishes(events)[0] == "Noted."
    asked = client.asked("cat notes.txt")
    assert {one["model"] for one in asked} == {"scripted"}
    assert "Sign them." in str(asked[0]["messages"])
    assert "$WHO >> notes.txt" in str(asked[0]["messages"])
    history = await client.history(name)
    shown = [event["action"] for event in history if "action" in event]
    assert [one for one in shown if one in ("run", "edit", "finish")] == [
        *("run", "edit", "edit", "finish"),
        *("run", "run", "finish"),
    ]


async def test_what_was_recorded_is_not_asked_about_and_what_follows_is(
    client: LiveClient, shared: Installation
) -> None:
    out = shared.at_home(f"out-{new_id()}")
    await client.save_settings(confirmation_mode=True)
    name = await start(
        client,
        [user("Begin."), act("run", command=f"echo again > {out}"), act("finish")],
        initial_user_msg=run("echo more"),
    )
    await client.wait_for_execution(name, "waiting_for_confirmation")
    assert out.read_text() == "again\n"
    assert outputs(await client.events(name)) == [""]


async def test_what_the_user_said_into_a_run_is_said_into_it_again(
    client: LiveClient,
) -> None:
    name = await start(
        client,
        [
            user("Begin."),
            act("run", command="cd / && sleep 1; echo one"),
            user("Faster!"),
            act("run", command="echo two"),
            act("finish"),
        ],
    )
    await client.wait_for_execution(name, "finished")
    events = await client.events(name)
    assert outputs(events) == ["one", "two"]
    kept = ("MessageEvent", "ActionEvent")
    assert [event["kind"] for event in events if event["kind"] in kept] == [
        *("MessageEvent", "ActionEvent"),
        *("MessageEvent", "ActionEvent", "ActionEvent"),
    ]
