"""Conversations that are told in the WebSocket of the user's own stream."""

import json
from typing import Any

from agentsvc.base.values import new_id
from tests.http.v1.streaming import events, feeder
from tests.service import Client, Service
from tests.streams import CHANGES, open_socket


def follow(stream: str, conversation_id: str, **more: Any) -> str:
    return json.dumps(
        {"type": "follow", "stream": stream, "conversation_id": conversation_id, **more}
    )


async def test_one_socket_tells_of_the_user_and_of_conversations(
    client: Client, service: Service
) -> None:
    one, two = await feeder(client, service), await feeder(client, service)
    await one.send(events(3))
    last = len(await client.events(one.conversation_id)) - 1
    async with open_socket(client, CHANGES, compress=15) as stream:
        socket = stream.socket
        assert socket.compress, "what browsers get is compressed"

        async def told(kind: str, of: str | None) -> dict[str, Any]:
            while True:
                message: dict[str, Any] = await socket.receive_json()
                if (message["type"], message.get("stream")) == (kind, of):
                    return message

        await told("ready", None)
        for wrong in ("[", "{}", "\ud7ff", follow("", one.conversation_id), follow("x", "no id")):
            await socket.send_str(wrong)
        await socket.send_str(follow("a", one.conversation_id, after=last - 1))
        assert (await told("event", "a"))["id"] == last
        await told("ready", "a")
        await socket.send_str(follow("b", two.conversation_id, latest=1))
        await told("ready", "b")
        await two.send(events(1))
        await told("event", "b")
        await one.send(events(1, first=9, more="long " * 50_000))
        assert (await told("event", "a"))["id"] == last + 1
        await socket.send_str(json.dumps({"type": "unfollow", "stream": "a"}))
        await socket.send_str(follow("c", new_id()))
        assert (await told("end", "c"))["data"] == {"reason": "not_found"}
        await client.patch(
            f"/api/v1/app-conversations/{one.conversation_id}", json={"title": "Still told"}
        )
        assert (await told("conversation", None))["data"]["id"] == one.conversation_id
        assert (
            await client.delete(f"/api/v1/app-conversations/{two.conversation_id}")
        ).status == 200
        assert (await told("end", "b"))["data"] == {"reason": "deleted"}
        for number in range(65):
            await socket.send_str(follow(f"n{number}", one.conversation_id, latest=0))
        assert (await told("end", "n64"))["data"] == {"reason": "too_many_streams"}
    other = await service.make_client("bob")
    async with open_socket(other, CHANGES) as stream:
        await stream.socket.send_str(follow("a", one.conversation_id))
        while (message := await stream.socket.receive_json()).get("stream") != "a":
            pass
        assert (message["type"], message["data"]) == ("end", {"reason": "not_found"})
