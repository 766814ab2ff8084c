"""The workspace of a conversation through the older generation, on the real agent server."""

import asyncio
import io
import zipfile

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

BINARY = bytes(range(256)) * 10_000


async def test_files_go_into_a_workspace_and_come_out(
    client: LiveClient, shared: Installation
) -> None:
    name = await client.start_conversation(run("mkdir -p src && echo hello > src/a.txt"))
    await client.wait_for_execution(name, "finished")
    path = f"/api/conversations/{name}"
    form = aiohttp.FormData(quote_fields=False)
    form.add_field("files", io.BytesIO(BINARY), filename="ä b.bin")
    form.add_field("files", io.BytesIO(b"text\n"), filename="b.txt")
    uploaded = await client.post(f"{path}/upload-files", data=form)
    assert uploaded.status == 200, uploaded.text
    assert uploaded.json()["skipped_files"] == []
    listed = await client.get(f"{path}/list-files")
    assert listed.json() == ["src/", "b.txt", "ä b.bin"]
    assert (await client.get(f"{path}/list-files?path=src")).json() == ["src/a.txt"]
    read = await client.get(f"{path}/select-file?file=src/a.txt")
    assert read.json() == {"code": "hello\n"}
    assert (await client.get(f"{path}/select-file?file=ä b.bin")).status == 415
    assert (await client.get(f"{path}/select-file?file=src")).status == 400
    assert (await client.get(f"{path}/select-file?file=none")).status == 404
    zipped = await client.get(f"{path}/zip-directory")
    assert zipped.status == 200, zipped.text
    archive = zipfile.ZipFile(io.BytesIO(zipped.body))
    assert archive.read("ä b.bin") == BINARY
    assert ".git/HEAD" in archive.namelist()
    changes = await client.get(f"{path}/git/changes")
    assert {"status": "A", "path": "b.txt"} in changes.json()
    diff = await client.get(f"{path}/git/diff?path=b.txt")
    assert diff.json() == {"modified": "text", "original": ""}
    assert (await client.get(f"{path}/microagents")).status == 200


async def test_a_stopped_conversation_goes_on_where_it_was(client: LiveClient) -> None:
    answer = await client.post("/api/conversations", json={"initial_user_msg": run("echo one")})
    name = answer.json()["conversation_id"]
    filters = f"conversation_id__eq={name}"
    tasks = await client.get(f"/api/v1/app-conversations/start-tasks/search?{filters}")
    await client.end_of_start(tasks.json()["items"][0]["id"])
    await client.wait_for_execution(name, "finished")
    stopped = await client.post(f"/api/conversations/{name}/stop")
    assert stopped.json()["conversation_status"] == "RUNNING"
    again = await client.post(f"/api/conversations/{name}/start", json={})
    assert again.json()["conversation_status"] in ("STARTING", "RUNNING")
    async with asyncio.timeout(60):
        while (await client.get(f"/api/conversations/{name}")).json()["status"] != "RUNNING":  # noqa: ASYNC110  # it is another process
            await asyncio.sleep(0.2)
    sent = await client.post(
        f"/api/conversations/{name}/message", json={"message": run("echo two")}
    )
    assert sent.status == 200, sent.text
    async with asyncio.timeout(60):
        while True:
            outputs = [event.get("content") for event in await client.history(name)]
            if "two" in outputs:
                return
            await asyncio.sleep(0.2)
