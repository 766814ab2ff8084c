"""Downloads of conversations: a zip file with all events, sent as it is made."""

import asyncio
import base64
import contextlib
import io
import json
import socket
import zipfile
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.base.errors import Conflict
from agentsvc.base.values import dashed, new_bytes, new_id
from agentsvc.conversations.export import MAX_EVENTS, Exports
from agentsvc.http.keys import EVENTS
from tests.service import Answer, Client, Service

PATH = "/api/v1/app-conversations"


async def _finished(client: Client) -> str:
    conversation_id = await client.start_conversation()
    await client.wait_for_execution(conversation_id, "finished")
    return conversation_id


async def _report(
    client: Client, service: Service, conversation_id: str, events: list[dict[str, Any]]
) -> None:
    """Deliver events as the sandbox of the conversation does."""
    shown = await client.conversation(conversation_id)
    sandbox = service.client_with(shown["session_api_key"])
    for first in range(0, len(events), 1000):
        answer = await sandbox.post(
            f"/api/v1/webhooks/events/{conversation_id}", json=events[first : first + 1000]
        )
        assert answer.status == 200, answer.text


def _event(number: int, **members: Any) -> dict[str, Any]:
    moment = datetime(2030, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(seconds=number)
    return {
        "id": dashed(new_id()),
        "timestamp": moment.isoformat(),
        "source": "agent",
        "kind": "PauseEvent",
        **members,
    }


def _content(answer: Answer) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(answer.body)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


async def test_a_download_has_the_conversation_and_each_event_in_order(client: Client) -> None:
    conversation_id = await _finished(client)
    events = await client.events(conversation_id)
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    assert answer.status == 200, answer.text
    assert answer.headers["Content-Type"] == "application/zip"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    filename = f"conversation_{dashed(conversation_id)}.zip"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{filename}"'
    content = _content(answer)
    names = [f"event_{n:06d}_{event['id']}.json" for n, event in enumerate(events)]
    assert list(content) == ["meta.json", *names]
    assert [json.loads(content[name]) for name in names] == events


async def test_what_a_download_tells_of_the_conversation_has_no_key(client: Client) -> None:
    conversation_id = await _finished(client)
    shown = await client.conversation(conversation_id)
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    meta = json.loads(_content(answer)["meta.json"])
    assert (meta["id"], meta["sandbox_id"]) == (conversation_id, shown["sandbox_id"])
    assert "session_api_key" not in meta
    assert shown["session_api_key"].encode() not in b"".join(_content(answer).values())


async def test_a_paused_conversation_can_be_downloaded(client: Client) -> None:
    conversation_id = await _finished(client)
    sandbox_id = (await client.conversation(conversation_id))["sandbox_id"]
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    assert len(_content(answer)) == 1 + len(await client.events(conversation_id))


async def test_no_event_names_a_place_outside_of_the_archive(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    told = [_event(0, id="../../etc/x y"), _event(1, id="e" * 255)]
    await _report(client, service, conversation_id, told)
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    [name] = [name for name in _content(answer) if "etc" in name]
    assert name.endswith("_.._.._etc_x_y.json")
    assert all(len(name) < 255 for name in _content(answer)), "file systems take no longer names"


async def test_a_conversation_that_is_not_there_or_not_ones_own_is_a_404(
    client: Client, service: Service
) -> None:
    unknown_id = new_id()
    answer = await client.get(f"{PATH}/{unknown_id}/download")
    assert (answer.status, answer.json()["detail"]) == (
        404,
        f"Conversation not found: {dashed(unknown_id)}",
    )
    conversation_id = await client.start_conversation(None)
    other = await service.make_client("bob", Role.MEMBER)
    assert (await other.get(f"{PATH}/{conversation_id}/download")).status == 404
    assert (await other.get(f"{PATH}/nonsense/download")).status == 422


async def test_only_one_download_of_a_conversation_goes_on_at_a_time(
    client: Client, service: Service
) -> None:
    path = await _large(client, service)
    reader, writer = await _ask(service, path, client)
    assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
    answer = await client.get(path)
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()
    assert (await client.get(path)).status == 200


async def test_who_does_not_read_on_is_cut_off(client: Client, service: Service) -> None:
    path = await _large(client, service)
    server = msgspec.structs.replace(service.config.server, request_seconds=1.5)
    service.config = msgspec.structs.replace(service.config, server=server)
    await service.restart()
    reader, writer = await _ask(service, path, client)
    assert await reader.readexactly(15) == b"HTTP/1.1 200 OK"
    await _until_free(client, path)
    with contextlib.suppress(ConnectionResetError):
        assert not (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


async def _until_free(client: Client, path: str) -> None:
    async with asyncio.timeout(client.patience):
        while True:
            if (await client.get(path)).status == 200:
                return
            await asyncio.sleep(0.1)


async def _large(client: Client, service: Service) -> str:
    """Return the path of a download that does not fit into the system's buffers."""
    conversation_id = await client.start_conversation(None)
    for number in range(12):
        noise = base64.b64encode(new_bytes(750_000)).decode()
        await _report(client, service, conversation_id, [_event(number, text=noise)])
    return f"{PATH}/{conversation_id}/download"


async def _ask(
    service: Service, path: str, client: Client
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for something, and do not read it yet."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.connect(("127.0.0.1", int(service.url.rpartition(":")[2])))
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    head = f"X-Access-Token: {client.key}\r\nHost: x\r\nConnection: close"
    writer.write(f"GET {path} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    return reader, writer


async def test_more_events_than_may_be_downloaded_are_a_413(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    await _report(client, service, conversation_id, [_event(n) for n in range(MAX_EVENTS + 1)])
    answer = await client.get(f"{PATH}/{conversation_id}/download")
    assert (answer.status, answer.json()["code"]) == (413, "export_too_large")
    assert str(MAX_EVENTS) in answer.json()["detail"]


async def test_a_download_that_is_broken_off_leaves_the_way_free(
    client: Client, service: Service
) -> None:
    conversation_id = await client.start_conversation(None)
    exports = Exports(service.app[EVENTS])
    async with exports.open(conversation_id, b"{}") as parts:
        assert await anext(parts)
        with pytest.raises(Conflict):
            await _pack(exports, conversation_id)
    data = await _pack(exports, conversation_id)
    assert zipfile.ZipFile(io.BytesIO(data)).read("meta.json") == b"{}"


async def _pack(exports: Exports, conversation_id: str) -> bytes:
    async with exports.open(conversation_id, b"{}") as parts:
        return b"".join([part async for part in parts])
