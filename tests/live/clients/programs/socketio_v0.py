"""What a program does at the socket of the older generation, with python-socketio's client."""

import asyncio
import json
import sys
from urllib.parse import urlencode

import socketio
from socketio.exceptions import ConnectionError as Refused

task = json.load(sys.stdin)


class Socket:
    """One connection and the frames that came over it."""

    def __init__(self):
        self.client = socketio.AsyncClient(reconnection=False)
        self.frames = []
        self.news = asyncio.Event()
        self.refusal = None
        self.client.on("oh_event", self.take)
        self.client.on("connect_error", self.refuse)

    def take(self, frame):
        self.frames.append(frame)
        self.news.set()

    def refuse(self, reason):
        self.refusal = reason["message"] if isinstance(reason, dict) else reason

    async def connect(self, transports=None, **query):
        fields = {"latest_event_id": -1, "session_api_key": task["key"], **query}
        url = f"{task['url']}?{urlencode(fields)}"
        await self.client.connect(url, transports=transports, wait_timeout=task["patience"])

    async def act(self, action, **args):
        await self.client.emit("oh_user_action", {"action": action, "args": args})

    async def state(self, name, count=1):
        """Wait until the agent has come to a state as often as this."""
        async with asyncio.timeout(task["patience"]):
            while states(self.frames).count(name) < count:
                self.news.clear()
                await self.news.wait()

    @property
    def events(self):
        return [frame for frame in self.frames if "id" in frame and "status_update" not in frame]


def states(frames):
    changes = [one for one in frames if one.get("observation") == "agent_state_changed"]
    return [one["extras"]["agent_state"] for one in changes]


def outputs(frames):
    return [one["content"].strip() for one in frames if one.get("observation") == "run"]


async def refusal(**query):
    socket = Socket()
    try:
        await socket.connect(**query)
    except Refused:
        return socket.refusal
    await socket.client.disconnect()
    return None


async def main():
    name = task["conversation_id"]
    report = {
        "wrong_key": await refusal(conversation_id=name, session_api_key="wrong"),
        "unknown": await refusal(conversation_id="0" * 32),
    }
    socket = Socket()
    await socket.connect(conversation_id=name)
    await socket.state("finished")
    report["replayed"] = outputs(socket.frames)
    report["before"] = len(socket.events)

    await socket.act("message", content=task["text"], image_urls=[])
    await socket.state("finished", 2)
    report["live"] = outputs(socket.frames)[len(report["replayed"]) :]
    report["echoed"] = [
        one["args"]["content"]
        for one in socket.events[report["before"] :]
        if one.get("action") == "message" and one["source"] == "user"
    ]

    await socket.act("message", content=task["slow"], image_urls=[])
    await socket.state("running", states(socket.frames).count("running") + 1)
    await socket.act("change_agent_state", agent_state="paused")
    await socket.state("paused")
    await socket.act("change_agent_state", agent_state="running")
    await socket.state("finished", 3)
    report["resumed"] = outputs(socket.frames)[-2:]
    ids = [one["id"] for one in socket.events]
    report["ids"] = ids
    await socket.client.disconnect()

    again = Socket()
    await again.connect(transports=["websocket"], conversation_id=name, latest_event_id=ids[-3])
    await again.state("finished")
    report["missed"] = [one["id"] for one in again.events]
    await again.client.disconnect()
    sys.stdout.write(f"{json.dumps(report)}\n")


asyncio.run(main())
