"""A real agent server, used through the gateway in the ways that published clients do."""

import io
import json
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import pytest

from tests.live.client import LiveClient
from tests.live.installation import Installation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="session"),
]

KEY = "X-Session-API-Key"
MIB = 1024 * 1024


async def test_a_conversation_is_followed_steered_and_looked_at_through_the_gateway(
    client: LiveClient, shared: Installation
) -> None:
    conversation_id = await client.start_conversation(run("echo one >a"))
    seen = await client.wait_for_execution(conversation_id, "finished")
    url, key = str(seen["conversation_url"]), str(seen["session_api_key"])
    assert url.startswith(f"{client.base_url}/sandboxes/{seen['sandbox_id']}/agent/")
    project = shared.sandbox_dir(seen["sandbox_id"]) / "workspace"

    below = url.partition("/api/conversations/")[0]
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    async with aiohttp.ClientSession() as session:
        for base in (below, root):
            sockets = f"{base}/sockets/events/{conversation_id}"
            query = f"{sockets}?resend_all=true&session_api_key={key}"
            everything = await _events(session, query)
            assert everything[0]["key"] == "full_state"
            kinds = [event["kind"] for event in everything]
            assert "MessageEvent" in kinds
            assert "ObservationEvent" in kinds
            shown = await _events(session, f"{sockets}?resend_mode=all", first=_auth(key))
            assert [event["kind"] for event in shown] == kinds
        await _check_files(session, below, root, key, f"{project}/sub dir/é.bin")
        await _check_git(session, below, root, key, str(project))
        await _check_steering(session, below, key, conversation_id, client)


async def _events(
    session: aiohttp.ClientSession, url: str, *, first: str | None = None
) -> list[dict[str, Any]]:
    """Return what a socket sends of a finished conversation."""
    found: list[dict[str, Any]] = []
    async with session.ws_connect(url) as socket:
        if first is not None:
            await socket.send_str(first)
        while not (found and found[-1].get("value") == "finished"):
            found.append(json.loads(await socket.receive_str(timeout=60)))
        assert await socket.close()
    return found


def _auth(key: str) -> str:
    return json.dumps({"type": "auth", "session_api_key": key})


async def _check_files(
    session: aiohttp.ClientSession, below: str, root: str, key: str, place: str
) -> None:
    """Upload in the form of today and in the one of old, and read both back."""
    data = bytes(range(256)) * (20 * MIB // 256)
    headers = {KEY: key}
    old = f"{root}/api/file/upload/{quote(place + '.old', safe='')}"
    for url in (f"{below}/api/file/upload?path={quote(place)}", old):
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(data), filename="file")
        async with session.post(url, data=form, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            assert (await answer.json())["file_size"] == len(data)
    for path in (place, f"{place}.old"):
        url = f"{below}/api/file/download?path={quote(path)}&session_api_key={key}"
        async with session.get(url) as answer:
            assert await answer.read() == data
    async with session.get(f"{below}/api/file/download?path={quote(place)}") as answer:
        assert answer.status == 401


async def _check_git(
    session: aiohttp.ClientSession, below: str, root: str, key: str, project: str
) -> None:
    headers = {KEY: key}
    found = []
    for url in (
        f"{below}/api/git/changes?path={quote(project)}",
        f"{root}/api/git/changes?path={quote(project)}",
        f"{root}/api/git/changes/{quote(project, safe='')}",
        f"{root}/api/git/changes/{project}",
    ):
        async with session.get(url, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            found.append(await answer.json())
    assert {"path": "a", "status": "ADDED"} in found[0]
    assert found == [found[0]] * 4


async def _check_steering(
    session: aiohttp.ClientSession, below: str, key: str, conversation_id: str, client: LiveClient
) -> None:
    """Send a message on the socket, with the user's own key, and see what comes of it."""
    headers = {KEY: str(client.key)}
    url = f"{below}/sockets/events/{conversation_id}"
    async with session.ws_connect(url, headers=headers) as socket:
        text = {"type": "text", "text": run("echo two >b")}
        await socket.send_json({"role": "user", "content": [text]})
        last: dict[str, Any] = {}
        while not (last.get("key") == "execution_status" and last["value"] == "finished"):
            last = json.loads(await socket.receive_str(timeout=60))
    async with session.get(
        f"{below}/api/conversations/{conversation_id}", headers={KEY: key}
    ) as it:
        assert (await it.json())["execution_status"] == "finished"
