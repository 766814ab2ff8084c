"""The stream of what changes for a user, so that no client has to poll."""

from typing import Any

import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.bus import Notice, Subject
from agentsvc.conversations.streams import Mark
from agentsvc.http.keys import EVENT_BUS, STREAMS
from tests.http.v1.streaming import feeder
from tests.service import Client, Service
from tests.streams import CHANGES, Stream, Told, open_lines, open_socket

OPENERS = pytest.mark.parametrize("opener", [open_lines, open_socket])


async def told_until(stream: Stream, kind: str, **members: Any) -> list[Told]:
    """Return what is told up to something of a kind that has these members."""
    told: list[Told] = []
    while (one := await stream.read()) is not None:
        told.append(one)
        if one.type == kind and members.items() <= one.data.items():
            return told
    raise AssertionError(f"it ended after {told[-3:]}")


@OPENERS
async def test_the_life_of_a_conversation_is_told(client: Client, opener: Any) -> None:
    async with opener(client, CHANGES) as stream:
        await stream.until("ready")
        task = await client.start_task("please work")
        conversation_id = task["app_conversation_id"] or task["id"]
        told = await told_until(stream, "start_task", id=task["id"], status="READY")
        assert told[-1].data == await client.task(task["id"])
        conversation_id = told[-1].data["app_conversation_id"]
        sandbox_id = told[-1].data["sandbox_id"]
        told += await told_until(stream, "conversation", execution_status="finished")
        running = await client.conversation(conversation_id)
        assert {one.type for one in told} == {"start_task", "sandbox", "conversation"}
        seen = [one.data for one in told if one.type == "sandbox"]
        assert {one["id"] for one in seen} == {sandbox_id}
        found = await client.sandbox(sandbox_id)
        assert found is not None
        # What it uses is measured when somebody asks, and is no change to tell of.
        assert seen[-1] == {**found, "usage": None}
        assert told[-1].data["conversation_url"] == running["conversation_url"]

        await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
        ended = await told_until(stream, "conversation", sandbox_status="PAUSED")
        assert ended[-1].data["conversation_url"] is None

        answer = await client.delete(f"/api/v1/app-conversations/{conversation_id}")
        assert answer.status == 200
        gone = await told_until(stream, "sandbox_deleted", id=sandbox_id)
        assert Told(type="conversation_deleted", data={"id": conversation_id}) in gone


async def test_a_change_of_a_conversation_is_told_as_it_is_read(client: Client) -> None:
    conversation_id = await client.start_conversation(None)
    async with open_lines(client, CHANGES) as stream:
        await stream.until("ready")
        path = f"/api/v1/app-conversations/{conversation_id}"
        await client.patch(path, json={"title": "Renamed"})
        told = await told_until(stream, "conversation", title="Renamed")
        assert told[-1].data == await client.conversation(conversation_id)


async def test_what_is_another_users_is_not_told(client: Client, service: Service) -> None:
    other = await service.make_client("somebody else", Role.MEMBER)
    await other.save_settings()
    async with open_lines(other, CHANGES) as stream:
        await stream.until("ready")
        mine = await client.start_conversation(None)
        its_own = await other.start_conversation(None)
        told = await told_until(stream, "conversation", id=its_own)
        assert mine not in str(told)


async def test_a_reader_that_missed_too_much_has_to_begin_anew(
    client: Client, service: Service
) -> None:
    feed = await feeder(client, service)
    user = (await client.get("/api/v1/users/me")).json()["id"]
    streams, event_bus = service.app[STREAMS], service.app[EVENT_BUS]
    stream = streams.of_user(user)
    assert await anext(stream) is Mark.READY
    for number in range(2000):
        event_bus.announce(
            Notice(subject=Subject.SANDBOX, user_id=user, id=f"{feed.conversation_id}{number}")
        )
    assert await anext(stream) is Mark.RESYNC
    assert [one async for one in stream] == []
    assert service.listeners() == 0
