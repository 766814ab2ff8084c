"""A real run is followed over streams while its server is killed and started again."""

import asyncio
from contextlib import AbstractAsyncContextManager

import aiohttp
import pytest

from tests.live.client import LiveClient
from tests.live.events import finishes, outputs
from tests.live.installation import Installation, eventually, size
from tests.live.scripts import WORDS, run
from tests.streams import Lines, Socket, Told, open_lines, open_socket, path_of

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]


class Follower:
    """Follows a conversation as a program does: it comes back whenever it loses the server."""

    def __init__(self, client: LiveClient, conversation_id: str, kind: str) -> None:
        self.told: list[Told] = []
        self.lost = 0
        self._client = client
        self._id = conversation_id
        self._kind = kind

    async def follow(self) -> None:
        """Read until the agent has finished."""
        while not finishes(one.data for one in self.told):
            try:
                async with self._open() as stream:
                    while (one := await stream.read()) is not None:
                        self.told += [one] if one.type == "event" else []
                        if finishes(each.data for each in self.told):
                            return
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
            self.lost += 1

    def _open(self) -> AbstractAsyncContextManager[Lines | Socket]:
        last = self.told[-1].id if self.told else None
        if self._kind == "socket":
            return open_socket(self._client, path_of(self._id, last))
        return open_lines(self._client, path_of(self._id), last_id=last)


async def test_a_run_is_followed_without_a_gap_over_a_kill_of_the_server(
    own: Installation,
) -> None:
    client = own.client()
    count = own.at_home("count")
    conversation_id = await client.start_conversation(
        run(
            "echo first",
            f"for i in $(seq 100); do echo $i >>{count}; sleep 0.1; done; echo slow",
            "echo last",
        )
    )
    followers = [Follower(client, conversation_id, kind) for kind in ("lines", "socket")]
    async with asyncio.timeout(client.patience), asyncio.TaskGroup() as group:
        for follower in followers:
            group.create_task(follower.follow())
        await eventually(lambda: size(count) > 5, "the command runs")
        await eventually(lambda: all(one.told for one in followers), "something was told")
        before = [len(one.told) for one in followers]
        await own.kill()
        await own.start()
    await client.wait_for_execution(conversation_id, "finished")
    stored = {event["id"]: event for event in await client.events(conversation_id)}
    for follower, known in zip(followers, before, strict=True):
        assert follower.lost > 0
        assert len(follower.told) > known
        ids = [one.id for one in follower.told]
        assert ids == [str(number) for number in range(len(ids))]
        assert outputs(one.data for one in follower.told) == ["first", "slow", "last"]
        assert all(stored[one.data["id"]] == one.data for one in follower.told)
    assert followers[0].told[:10] == followers[1].told[:10]


async def test_the_words_of_the_model_come_as_deltas_between_the_events(own: Installation) -> None:
    client = own.client()
    conversation_id = await client.start_conversation("[script:say]")
    await client.wait_for_execution(conversation_id, "finished")
    async with (
        open_lines(client, path_of(conversation_id)) as lines,
        open_socket(client, path_of(conversation_id)) as socket,
    ):
        for stream in (lines, socket):
            await stream.until("ready")
        await asyncio.sleep(2)
        await client.send(conversation_id, "[script:words]")
        for stream in (lines, socket):
            told: list[Told] = []
            async with asyncio.timeout(client.patience):
                while not (told and WORDS in str(told[-1].data.get("llm_message"))):
                    one = await stream.read()
                    assert one is not None
                    told.append(one)
            observed = [one.data.get("kind") for one in told].index("ObservationEvent")
            words = [
                one.data.get("content") or "" for one in told[observed:] if one.type == "delta"
            ]
            assert len(words) > 10
            assert "".join(words) == WORDS
