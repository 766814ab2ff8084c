"""The event socket: what a client is told, and what it can do, over both transports."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from engineio.payload import Payload

from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import OrderRejected
from agentsvc.http.keys import DATABASE
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent
from tests.http.v0.steps import (
    PATH,
    history,
    start,
    start_running,
    wait_for_history,
    wait_for_state,
    wait_for_status,
)
from tests.service import Client, Service
from tests.sockets import BOTH, Frame, follow, states
from tests.troubles import TroubledWorld, eventually

NOTHING = CommandResult(exit_code=0, stdout="", stderr="")
TRANSPORTS = pytest.mark.parametrize("transports", [["polling"], ["websocket"], list(BOTH)])


async def start_finished(client: Client) -> str:
    name = await start_running(client, initial_user_msg="please work")
    await wait_for_state(client, name, "finished")
    return name


def is_state(event: Frame) -> bool:
    return event.get("observation") == "agent_state_changed"


def has_finished(times: int, events: list[Frame]) -> bool:
    return states(events).count("finished") == times


def unnumbered_states(frames: Sequence[Frame]) -> list[str]:
    """Return the states that are told without being events."""
    return [
        frame["extras"]["agent_state"]
        for frame in frames
        if is_state(frame) and "timestamp" not in frame
    ]


def without_source(events: list[Frame]) -> list[Frame]:
    """Return events as they are in both forms: what the environment tells is the agent's, live."""
    return [{name: value for name, value in one.items() if name != "source"} for one in events]


# What is told


@TRANSPORTS
async def test_the_stored_events_come_first_with_the_last_state_at_the_end(
    client: Client, transports: list[str]
) -> None:
    name = await start_finished(client)
    whole = await history(client, name)
    async with follow(client.base_url, client.key, name, transports=transports) as follower:
        await follower.until_state("finished")
        expected = [event for event in whole if not is_state(event)]
        assert follower.events == [*expected, [event for event in whole if is_state(event)][-1]]


async def test_a_client_of_a_conversation_without_a_message_is_told_that_the_agent_waits_for_one(
    client: Client,
) -> None:
    name = await start(client)
    async with follow(client.base_url, client.key, name) as follower:
        told = await follower.until(lambda frames: any(map(is_state, frames)))
        [waiting] = filter(is_state, told)
        assert waiting["extras"] == {"agent_state": "awaiting_user_input", "reason": ""}
        assert (follower.events, await history(client, name)) == ([], [])
        await follower.say("please work")
        await follower.until_state("finished")
        assert follower.ids == list(range(follower.ids[0], follower.ids[0] + len(follower.ids)))


@TRANSPORTS
async def test_what_happens_is_told_with_the_numbers_of_the_history(
    client: Client, transports: list[str]
) -> None:
    name = await start_running(client)
    async with follow(client.base_url, client.key, name, transports=transports) as follower:
        await follower.say("please work")
        await follower.until_state("finished")
        whole = await history(client, name)
        first = follower.ids[0]
        assert without_source(follower.events) == without_source(whole[first:])
        assert {event["source"] for event in follower.events if is_state(event)} == {"agent"}
        said = [event for event in follower.events if event.get("action") == "message"]
        assert (said[0]["source"], said[0]["args"]["content"]) == ("user", "please work")


@TRANSPORTS
async def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice(
    client: Client, transports: list[str], fake_agent: FakeAgent
) -> None:
    fake_agent.on_command("Hello from", NOTHING, seconds=1)
    name = await start(client, initial_user_msg="please work")
    seen: list[Frame] = []
    while states(seen)[-1:] != ["finished"]:
        latest = max((event["id"] for event in seen), default=-1)
        async with follow(
            client.base_url, client.key, name, transports=transports, latest_event_id=latest
        ) as follower:
            await follower.until(lambda frames: any("timestamp" in frame for frame in frames))
        assert min(follower.ids) > latest
        seen += follower.events
    told = [event for event in await history(client, name) if not is_state(event)]
    assert without_source([event for event in seen if not is_state(event)]) == without_source(told)


@TRANSPORTS
async def test_a_history_of_more_events_than_clients_take_in_one_answer_is_told(
    client: Client, transports: list[str]
) -> None:
    name = await start_finished(client)
    for times in range(2, 9):
        await client.post(f"{PATH}/{name}/message", json={"message": "please work"})
        await wait_for_history(client, name, partial(has_finished, times))
    whole = await history(client, name)
    told = [event for event in whole if not is_state(event)]
    assert len(told) > Payload.max_decode_packets
    async with follow(client.base_url, client.key, name, transports=transports) as follower:
        await follower.until_state("finished")
        assert follower.ids[-1] == whole[-1]["id"]


async def test_a_client_that_comes_back_after_a_restart_misses_nothing(
    client: Client, service: Service
) -> None:
    name = await start_finished(client)
    async with follow(client.base_url, client.key, name) as follower:
        frames = await follower.until_state("finished")
        await service.restart()
        await asyncio.wait_for(follower.is_over.wait(), client.patience)
    latest = max(frame["id"] for frame in frames if "timestamp" in frame)
    async with follow(client.base_url, client.key, name, latest_event_id=latest) as follower:
        await follower.say("please go on")
        await follower.until_state("finished")
        assert follower.ids == list(range(latest + 1, latest + 1 + len(follower.ids)))
        assert follower.ids[-1] == (await history(client, name))[-1]["id"]


@pytest.mark.parametrize("latest", ["", "-1", "x", "null", "undefined", "NaN", "1.5", "--1"])
async def test_a_client_that_names_no_event_gets_all_of_them(client: Client, latest: str) -> None:
    name = await start_finished(client)
    last = (await history(client, name))[-1]["id"]
    async with follow(client.base_url, client.key, name, latest_event_id=latest) as follower:
        await follower.until_state("finished")
        assert (min(follower.ids), max(follower.ids)) == (1, last)


async def test_a_client_ahead_of_the_history_gets_what_is_new(client: Client) -> None:
    name = await start_finished(client)
    last = (await history(client, name))[-1]["id"]
    async with follow(client.base_url, client.key, name, latest_event_id=10**6) as follower:
        await follower.say("please go on")
        await follower.until_state("finished")
        assert min(follower.ids) == last + 1


async def test_a_start_is_told_to_its_end(client: Client, fake_world: FakeWorld) -> None:
    fake_world.stays_starting = True
    name = await start(client, initial_user_msg="please work")
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until(lambda frames: frames)
        assert follower.frames[0] == {
            "status_update": True,
            "type": "info",
            "id": "STATUS$STARTING_RUNTIME",
            "message": "",
        }
        fake_world.stays_starting = False
        await follower.until_state("finished")
        await follower.until(lambda _: "STATUS$READY" in follower.statuses)
        assert follower.ids == list(range(len(follower.ids)))


async def test_a_start_that_fails_is_told_with_its_reason(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.next["create"].append(OrderRejected("no room for it"))
    name = await start(client)
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until(lambda _: "STATUS$ERROR" in follower.statuses)
        [told] = [frame for frame in follower.frames if frame.get("id") == "STATUS$ERROR"]
        assert told["type"] == "error"
        assert "no room for it" in told["message"]


async def test_a_sandbox_that_fails_in_a_start_is_told_once_with_what_to_do(
    client: Client, fake_world: TroubledWorld
) -> None:
    fake_world.stays_starting = True
    logs = fake_world.hold("logs")
    name = await start(client)
    async with follow(client.base_url, client.key, name) as follower:
        await eventually(lambda: fake_world.count("inspect") > 0)
        [sandbox_id] = fake_world.sandboxes
        fake_world.end(sandbox_id, reason="no room for it")
        # The sandbox has failed, and the start looks into its log before it fails, too.
        await wait_for_status(client, name, "ERROR")
        await fake_world.waits("logs")
        logs.set()
        await follower.until(lambda _: "STATUS$ERROR" in follower.statuses)
        [told] = [frame for frame in follower.frames if frame.get("id") == "STATUS$ERROR"]
        assert "no room for it" in told["message"]
        assert "Start the conversation again" in told["message"]


async def test_a_new_title_is_told_under_the_clients_own_name(client: Client) -> None:
    name = await start_running(client, conversation_id="my-own-name")
    async with follow(client.base_url, client.key, name) as follower:
        await client.patch(f"{PATH}/{name}", json={"title": "A better one"})
        frames = await follower.until(
            lambda frames: any("conversation_title" in frame for frame in frames)
        )
        assert frames[-1] == {
            "status_update": True,
            "type": "info",
            "message": "my-own-name",
            "conversation_title": "A better one",
        }


async def test_a_stop_is_told_and_a_connect_starts_again(client: Client) -> None:
    name = await start_finished(client)
    async with follow(client.base_url, client.key, name) as follower:
        await client.post(f"{PATH}/{name}/stop")
        await follower.until(lambda frames: unnumbered_states(frames) == ["stopped"])
        assert "STATUS$STOPPED" in follower.statuses
        whole = await history(client, name)
        before, last = states(whole)[-1], whole[-1]["id"]
        # Another one wakes it, and has no event that tells a state.
        async with follow(client.base_url, client.key, name, latest_event_id=last) as other:
            await other.until(lambda frames: unnumbered_states(frames) == [before])
            assert "STATUS$READY" in other.statuses
        await follower.until(lambda frames: unnumbered_states(frames) == ["stopped", before])
    await wait_for_status(client, name, "RUNNING")


async def test_a_conversation_whose_sandbox_is_gone_is_still_told(
    client: Client, fake_world: FakeWorld
) -> None:
    name = await start_finished(client)
    sandbox_id = (await client.conversation(name))["sandbox_id"]
    await client.delete(f"/api/v1/sandboxes/{sandbox_id}")
    await wait_for_status(client, name, "ARCHIVED")
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until_state("finished")
        await follower.until(lambda _: follower.statuses)
        assert follower.statuses == ["STATUS$ERROR_RUNTIME_DISCONNECTED"]
        await follower.say("are you there?")
        await follower.until(lambda _: follower.errors)


async def test_deleting_a_conversation_ends_the_connection(client: Client) -> None:
    name = await start_finished(client)
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until_state("finished")
        await client.delete(f"{PATH}/{name}")
        await asyncio.wait_for(follower.is_over.wait(), client.patience)


async def wait_for_connections(client: Client, name: str, count: int) -> None:
    """Wait until so many clients are said to follow a conversation, wherever it is said."""
    async with asyncio.timeout(client.patience):
        while True:
            listed = (await client.get(PATH)).json()["results"]
            one = (await client.get(f"{PATH}/{name}")).json()
            same = [found for found in listed if found["conversation_id"] == name]
            if [found["num_connections"] for found in [one, *same]] == [count, count]:
                return
            await asyncio.sleep(0.02)


async def test_a_client_that_can_be_told_no_more_has_to_come_back(
    client: Client, service: Service
) -> None:
    name = await start_finished(client)
    db = service.app[DATABASE]
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until_state("finished")
        await db.write(lambda tx: tx.run("ALTER TABLE events RENAME TO unreadable"))
        await client.patch(f"{PATH}/{name}", json={"title": "News"})
        await asyncio.wait_for(follower.is_over.wait(), client.patience)
        await db.write(lambda tx: tx.run("ALTER TABLE unreadable RENAME TO events"))
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until_state("finished")


async def test_a_client_that_leaves_is_forgotten(client: Client) -> None:
    name = await start_running(client)
    await wait_for_connections(client, name, 0)
    for transport in BOTH:
        place = follow(client.base_url, client.key, name, transports=[transport])
        other = follow(client.base_url, client.key, name, transports=[transport])
        async with place as follower:
            await follower.say("please work")
            await follower.until_state("finished")
            async with other:
                await wait_for_connections(client, name, 2)
        await wait_for_connections(client, name, 0)


# What a client can do


@pytest.mark.parametrize("name", ["oh_user_action", "oh_action"])
async def test_a_message_is_passed_on(client: Client, name: str) -> None:
    conversation = await start_finished(client)
    async with follow(client.base_url, client.key, conversation, latest_event_id=100) as follower:
        await follower.say("and now?", name=name)
        await follower.until_state("finished")
        assert follower.events[0]["args"]["content"] == "and now?"


@pytest.mark.parametrize("wish", ["paused", "stopped"])
async def test_a_run_is_ended_and_taken_up_again(
    client: Client, fake_agent: FakeAgent, wish: str
) -> None:
    fake_agent.on_command("Hello from", NOTHING, seconds=2)
    name = await start_running(client, initial_user_msg="please work")
    async with follow(client.base_url, client.key, name) as follower:
        await follower.until(lambda frames: any(one.get("action") == "run" for one in frames))
        await follower.wish(wish)
        await follower.until_state(wish)
        await follower.wish("running")
        await follower.until_state("finished")
        told = [one for one in follower.events if is_state(one) or _is_wish(one)]
        words = [(one["source"], (one.get("args") or one["extras"])["agent_state"]) for one in told]
        assert words[words.index(("user", wish)) :] == [
            ("user", wish),
            ("agent", wish),
            ("user", "running"),
            ("agent", "running"),
            ("agent", "finished"),
        ]


async def test_an_agent_that_does_nothing_is_stopped_and_paused_at_once(client: Client) -> None:
    name = await start_finished(client)
    async with follow(client.base_url, client.key, name) as follower:
        for wish in ("stopped", "paused", "stopped"):
            await follower.wish(wish)
            await follower.until_state(wish)
        await follower.wish("user_confirmed")
        await follower.until(lambda frames: sum(map(_is_wish, frames)) == 4)
        assert {one["source"] for one in follower.events if _is_wish(one)} == {"user"}
        await follower.say("please go on")
        await follower.until_state("finished")
        news = [one for one in await history(client, name) if one["id"] in follower.ids]
        assert without_source(news) == without_source(sorted(follower.events, key=_number))


def _is_wish(event: Frame) -> bool:
    return event.get("action") == "change_agent_state"


def _number(event: Frame) -> int:
    return int(event["id"])


@pytest.mark.parametrize(
    ("answer", "state"), [("user_confirmed", "finished"), ("user_rejected", "awaiting_user_input")]
)
async def test_a_question_is_asked_and_answered(client: Client, answer: str, state: str) -> None:
    await client.save_settings(confirmation_mode=True)
    name = await start_running(client)
    async with follow(client.base_url, client.key, name) as follower:
        await follower.say("please work")
        pending = ["awaiting_user_confirmation"]
        answered = 0

        def is_asked_or_over(frames: Sequence[Frame]) -> bool:
            told = states(frames)
            return len(told) > answered and told[-1:] in (pending, [state])

        while states(await follower.until(is_asked_or_over))[-1:] == pending:
            answered = len(states(follower.frames))
            await follower.wish(answer)
        assert answer in states(follower.frames)
        assert follower.ids == list(range(follower.ids[0], follower.ids[-1] + 1))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"action": "run", "args": {"command": "ls"}}, "The action should be"),
        ({"action": "message", "args": {}}, "The message is empty"),
        ({"action": "message", "args": {"content": 3}}, "do not fit"),
        ({"action": "change_agent_state", "args": {"agent_state": "happy"}}, "do not fit"),
        ({"action": "change_agent_state", "args": {"agent_state": "loading"}}, "should be one of"),
        ([], "This is not an action"),
        (3, "This is not an action"),
        (None, "This is not an action"),
    ],
)
async def test_what_is_no_action_is_told_to_whoever_said_it(
    client: Client, said: Any, why: str
) -> None:
    name = await start_finished(client)
    async with (
        follow(client.base_url, client.key, name, latest_event_id=100) as follower,
        follow(client.base_url, client.key, name, latest_event_id=100) as other,
    ):
        await follower.act(said)
        await follower.until(lambda _: follower.errors)
        assert why in follower.errors[0]
        await follower.say("go on")
        await other.until_state("finished")
        assert other.errors == []


async def test_an_action_that_cannot_be_done_now_is_refused_with_a_reason(
    client: Client, fake_world: FakeWorld
) -> None:
    fake_world.stays_starting = True
    name = await start(client)
    async with follow(client.base_url, client.key, name) as follower:
        await follower.say("hello")
        await follower.until(lambda _: follower.errors)
        assert follower.errors == ["The conversation is still being started"]
