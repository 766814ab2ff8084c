"""The event socket of the older generation, with the real agent server behind it."""

import asyncio

import pytest

from tests.live.client import PATIENCE, LiveClient
from tests.live.installation import Installation
from tests.live.scripts import run
from tests.sockets import Follower, Frame, follow, states

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


def outputs(frames: list[Frame]) -> list[str]:
    """Return what each command printed, in order."""
    return [one["content"].strip() for one in frames if one.get("observation") == "run"]


def known(events: list[Frame]) -> list[Frame]:
    """Return what is told of events in both forms, states aside."""
    return [
        {name: value for name, value in one.items() if name != "source"}
        for one in events
        if one.get("observation") != "agent_state_changed"
    ]


async def start(client: LiveClient, text: str) -> str:
    answer = await client.post("/api/conversations", json={"initial_user_msg": text})
    assert answer.status == 200, answer.text
    return str(answer.json()["conversation_id"])


async def test_a_conversation_is_followed_across_disconnects_and_a_restart(
    own: Installation,
) -> None:
    client = own.client()
    name = await start(client, run("echo first"))
    seen: list[Frame] = []
    async with follow(own.url, client.key, name, patience=PATIENCE) as follower:
        await follower.until_state("finished")
        assert outputs(follower.frames) == ["first"]
        assert "STATUS$STARTING_RUNTIME" in follower.statuses
        await follower.say(run("echo second", "sleep 2; echo third"))
        await follower.until(lambda frames: outputs(list(frames))[1:2] == ["second"])
    seen += follower.events

    async with follow(
        own.url, client.key, name, patience=PATIENCE, latest_event_id=seen[-1]["id"]
    ) as follower:
        await own.kill()
        await asyncio.wait_for(follower.is_over.wait(), PATIENCE)
    seen += follower.events
    await own.start()

    async with follow(
        own.url,
        client.key,
        name,
        patience=PATIENCE,
        transports=["polling"],
        latest_event_id=max(one["id"] for one in seen),
    ) as follower:
        await follower.until_state("finished")
        await follower.say(run("echo fourth"))
        await follower.until(lambda frames: "fourth" in outputs(list(frames)))
        await follower.until_state("finished")
    seen += follower.events

    assert outputs(seen) == ["first", "second", "third", "fourth"]
    assert known(seen) == known(await client.history(name))
    assert len({one["id"] for one in seen}) == len(seen)


async def test_an_agent_is_stopped_at_work_and_when_it_does_nothing(
    client: LiveClient, shared: Installation, sandbox_id: str
) -> None:
    name = await client.start_conversation(run("sleep 60"), sandbox_id=sandbox_id)
    async with follow(shared.url, client.key, name, patience=PATIENCE) as follower:
        await follower.until(lambda frames: any(one.get("action") == "run" for one in frames))
        await follower.wish("stopped")
        await follower.until_state("stopped")
        kinds = [one.get("action") or one["observation"] for one in follower.events]
        assert kinds[-3:] == ["change_agent_state", "error", "agent_state_changed"]
        await follower.say(run("echo again"))
        await follower.until_state("finished")
        await follower.wish("stopped")
        await follower.until_state("stopped")
        wishes = [one for one in follower.events if one.get("action") == "change_agent_state"]
        assert [one["args"]["agent_state"] for one in wishes] == ["stopped", "stopped"]


async def test_a_question_is_answered_over_the_socket(
    client: LiveClient, shared: Installation
) -> None:
    await client.save_settings(confirmation_mode=True)
    name = await start(client, run("echo accepted"))
    async with follow(shared.url, client.key, name, patience=PATIENCE) as follower:
        await follower.until_state("awaiting_user_confirmation")
        assert outputs(follower.frames) == []
        await answer_all(follower, "user_confirmed")
        assert outputs(follower.frames) == ["accepted"]
        assert "user_confirmed" in states(follower.frames)


async def answer_all(follower: Follower, answer: str) -> None:
    """Answer every question of the agent until it has finished."""
    told = 0

    def is_asked_or_over(frames: object) -> bool:
        del frames
        now = states(follower.frames)
        return len(now) > told and now[-1] in ("awaiting_user_confirmation", "finished")

    while states(await follower.until(is_asked_or_over))[-1] != "finished":
        told = len(states(follower.frames))
        await follower.wish(answer)
