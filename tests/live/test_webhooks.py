"""Outgoing webhooks of a real server to a receiver of its own process, both of which fail."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.live.client import LiveClient
from tests.live.conftest import MakeInstallation
from tests.live.installation import eventually
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

HOOKS = "/api/v1/webhook-subscriptions"
QUICK = {
    "AGENTSVC_WEBHOOKS__ALLOW_PRIVATE": "true",
    "AGENTSVC_WEBHOOKS__FIRST_RETRY_SECONDS": "0.2",
    "AGENTSVC_WEBHOOKS__LONGEST_RETRY_SECONDS": "0.5",
}


class Receiver:
    """A receiver that is down until it is started; its address is its own all the time."""

    def __init__(self, listener: socket.socket, taken: Path) -> None:
        self._listener = listener
        self._taken = taken
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}/hook"

    def start(self) -> None:
        number = self._listener.fileno()
        command = [sys.executable, "-m", "tests.live.webhook_receiver", str(number)]
        self._process = subprocess.Popen([*command, str(self._taken)], pass_fds=[number])

    def end(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def taken(self) -> list[dict[str, Any]]:
        text = self._taken.read_text() if self._taken.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line[-1] == "\n"]


@contextmanager
def receiver_in(folder: Path) -> Iterator[Receiver]:
    """Give an address where nobody listens yet."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        receiver = Receiver(listener, folder / "taken")
        try:
            yield receiver
        finally:
            receiver.end()


async def pending(client: LiveClient, hook: str) -> list[dict[str, Any]]:
    answer = await client.get(f"{HOOKS}/{hook}/deliveries?state=pending&limit=100")
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def by_id(event: dict[str, Any]) -> str:
    return str(event["id"])


async def until_delivered(client: LiveClient, hook: str) -> None:
    async with asyncio.timeout(client.patience):
        while await pending(client, hook):  # noqa: ASYNC110  # the server has no event for it
            await asyncio.sleep(0.1)


async def test_a_receiver_that_was_down_gets_everything_in_order_after_a_restart(
    make_installation: MakeInstallation, tmp_path: Path
) -> None:
    own = await make_installation(**QUICK)
    client = own.client()
    with receiver_in(tmp_path) as receiver:
        order = {"url": receiver.url, "changes": []}
        hook = (await client.post(HOOKS, json=order)).json()
        first = await client.start_conversation(run("echo one", "echo two"))
        found = await client.wait_for_execution(first, "finished")
        tried = await pending(client, hook["id"])
        assert tried
        await own.restart()
        left = {one["id"] for one in await pending(client, hook["id"])}
        assert {one["id"] for one in tried} <= left

        receiver.start()
        await eventually(receiver.taken, "the receiver takes deliveries")
        # It fails in the middle of it, and so does the server while the agent works.
        receiver.end()
        text = run("echo three", "sleep 2", "echo four")
        second = await client.start_conversation(text, sandbox_id=found["sandbox_id"])
        await own.restart()
        receiver.start()
        await client.wait_for_execution(second, "finished")
        await until_delivered(client, hook["id"])

        told: defaultdict[str, dict[int, Any]] = defaultdict(dict)
        ids: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        for one in receiver.taken():
            data = Webhook(hook["secret"]).verify(one["body"], one["headers"])["data"]
            of_one, seq = told[data["conversation_id"]], data["seq"]
            assert seq in of_one or seq == len(of_one)
            of_one[seq] = data["event"]
            ids[data["conversation_id"], seq].add(one["headers"]["webhook-id"])
        assert all(len(one) == 1 for one in ids.values())
        for conversation_id in (first, second):
            # In the order of their numbers; the page below is in that of their times.
            events = told[conversation_id.replace("-", "")].values()
            stored = await client.events(conversation_id)
            assert sorted(events, key=by_id) == sorted(stored, key=by_id)
        assert hook["secret"] not in own.log
