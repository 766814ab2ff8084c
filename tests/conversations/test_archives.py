"""Workspaces that are saved in the data directory, and conversations that begin with one."""

import asyncio
import copy
import gzip
import io
import itertools
import os
import stat
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from aiohttp import web

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.conversations.archives import Archive, Archives, ArchiveState
from agentsvc.conversations.archives.table import insert_archive
from agentsvc.http import keys
from agentsvc.http.keys import DATABASE, SANDBOXES, SUPERVISOR
from agentsvc.plugin import Capability
from agentsvc.sandboxes import Sandbox
from tests.agentserver.test_workspace import Shell
from tests.service import WAIT_SECONDS, Client, Service
from tests.troubles import TroubledAgent, TroubledWorld, eventually, reconfigure

STARTS = "/api/v1/app-conversations"
ARCHIVES = "/api/v1/archives"
UNKNOWN = "0" * 32


def pack(**files: str) -> bytes:
    """Return what tar would write in a sandbox."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        out = tarfile.TarInfo("./out")
        out.type, out.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(out)
    return whole.getvalue()


def pack_zeros(size: int) -> bytes:
    """Return what tar would write of one file of so many zeros, in no time."""
    info = tarfile.TarInfo("./zeros")
    info.size = size
    part = 2**24
    zeros = gzip.compress(bytes(part), 1)
    return gzip.compress(info.tobuf()) + zeros * (size // part) + gzip.compress(bytes(10240))


class PackingAgent(TroubledAgent):
    """A fake agent server whose sandboxes all have the same workspace to be saved."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.packed = pack(notes="remember", plan="go on")
        self.let_download = asyncio.Event()
        self.let_download.set()
        self.downloads = 0

    async def get_download(self, request: web.Request) -> web.Response:
        if "/.agentsvc-archive-" not in request.query["path"]:
            return await super().get_download(request)
        self.downloads += 1
        await self.let_download.wait()
        if not self.packed:
            return await super().get_download(request)
        return web.Response(body=self.packed)

    def unpacked(self, sandbox_id: str) -> dict[str, str]:
        """Return the files of the archive that was brought into a sandbox."""
        sandbox = self.sandboxes[sandbox_id]
        [data] = [data for path, data in sandbox.files.items() if "/.agentsvc-archive-" in path]
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            return {
                info.name: (tar.extractfile(info) or io.BytesIO()).read().decode() for info in tar
            }


@pytest.fixture
async def fake_agent() -> AsyncIterator[PackingAgent]:
    async with PackingAgent() as agent:
        yield agent
        agent.let_download.set()
        agent.let_go()


async def until[T](look: Callable[[], Awaitable[T]]) -> T:
    """Return what is found, as soon as it is something."""
    async with asyncio.timeout(WAIT_SECONDS):
        for pause in itertools.repeat(0.03):
            if found := await look():
                return found
            await asyncio.sleep(pause)
    raise AssertionError


async def saved(client: Client, archive_id: str) -> dict[str, Any]:
    """Return an archive once it is decided what becomes of it."""

    async def look() -> dict[str, Any] | None:
        found: dict[str, Any] = (await client.get(f"{ARCHIVES}/{archive_id}")).json()
        return found if found["state"] != "saving" else None

    found = await until(look)
    assert found is not None
    return found


async def archives(client: Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await client.get(ARCHIVES)).json()["items"]
    return found


async def save(client: Client, conversation_id: str) -> dict[str, Any]:
    answer = await client.post(f"{STARTS}/{conversation_id}/archives")
    assert answer.status == 201, answer.text
    assert answer.json()["state"] == "saving"
    return await saved(client, answer.json()["id"])


async def start(client: Client, **fields: Any) -> tuple[str, str]:
    """Return a conversation and its sandbox."""
    conversation_id = await client.start_conversation(**fields)
    return conversation_id, str((await client.conversation(conversation_id))["sandbox_id"])


async def begun_archive(service: Service, conversation_id: str, sandbox_id: str) -> Archive:
    """Return an archive of a conversation that is not stored and not saved yet."""
    row = await service.app[SANDBOXES].find_any(sandbox_id)
    assert row is not None
    return Archive(
        user_id=row.user_id,
        conversation_id=conversation_id,
        title="",
        sandbox_id=sandbox_id,
        working_dir="/workspace",
        directory="",
        releases=False,
    )


async def configure(service: Service, **fields: Any) -> None:
    service.config = msgspec.structs.replace(
        service.config, archives=msgspec.structs.replace(service.config.archives, **fields)
    )
    await service.restart()


def files_of(service: Service) -> list[Path]:
    return sorted((service.data_dir / "archives").glob("*"))


async def test_a_workspace_is_saved_and_a_new_sandbox_begins_with_it(
    client: Client, service: Service, fake_agent: PackingAgent
) -> None:
    conversation_id, sandbox_id = await start(client, title="Notes")
    archive = await save(client, conversation_id)
    assert (archive["state"], archive["title"], archive["files"]) == ("ready", "Notes", 2)
    assert (archive["unpacked_bytes"], archive["skipped"]) == (13, 1)
    [file] = files_of(service)
    assert file.stat().st_size == archive["size_bytes"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert await archives(client) == [archive]

    _, second = await start(client, archive_id=archive["id"])
    assert second != sandbox_id
    assert fake_agent.unpacked(second) == {"notes": "remember", "plan": "go on"}
    assert any(
        "tar --no-same-owner -C /workspace/project " in command
        for command in fake_agent.sandboxes[second].commands
    )


async def test_an_archive_is_on_the_disk_before_its_sandbox_goes(
    client: Client,
    service: Service,
    fake_world: TroubledWorld,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await configure(service, on_delete=True)
    conversation_id, _ = await start(client)
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        fsync(descriptor)
        if not fake_world.count("delete"):
            synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)

    monkeypatch.setattr(os, "fsync", noted)
    assert (await client.delete(f"{STARTS}/{conversation_id}")).status == 200
    [one] = await archives(client)
    await saved(client, one["id"])
    await eventually(lambda: fake_world.count("delete") > 0)
    assert synced == [f"{one['id']}.draft", "archives"]


async def test_a_start_that_goes_on_after_a_restart_unpacks_nothing_over_what_its_agent_did(
    client: Client, service: Service, tmp_path: Path
) -> None:
    conversation_id, sandbox_id = await start(client)
    saved_one = await save(client, conversation_id)
    row = await service.app[SANDBOXES].find_any(sandbox_id)
    assert row is not None
    archives = service.app[keys.ARCHIVES]
    archive = await archives.get(row.user_id, saved_one["id"])
    shell = Shell(tmp_path)
    first, second = tmp_path / "project" / "first", tmp_path / "project" / "second"
    await archives.restore(archive, shell, str(first))
    (first / "notes").write_text("the agent's own")
    for directory in (first, second):
        await archives.restore(archive, shell, str(directory))
    assert (first / "notes").read_text() == "the agent's own"
    assert (second / "notes").read_text() == "remember"


async def test_an_archive_is_its_users_and_can_be_deleted(client: Client, service: Service) -> None:
    conversation_id, _ = await start(client)
    path = f"{ARCHIVES}/{(await save(client, conversation_id))['id']}"
    bob = await service.make_client("bob", Role.MEMBER)
    assert (await bob.get(path)).status == 404
    assert (await bob.delete(path)).status == 404
    assert await archives(bob) == []
    assert (await bob.post(f"{STARTS}/{conversation_id}/archives")).status == 404
    assert (await client.delete(path)).status == 200
    assert (await client.get(path)).status == 404
    assert files_of(service) == []


async def test_archives_are_listed_in_pages(client: Client) -> None:
    conversation_id, _ = await start(client)
    ids = [(await save(client, conversation_id))["id"] for _ in range(3)]
    first = (await client.get(f"{ARCHIVES}?limit=2")).json()
    rest = (await client.get(f"{ARCHIVES}?limit=2&page_id={first['next_page_id']}")).json()
    assert [one["id"] for one in (*first["items"], *rest["items"])] == ids[::-1]
    assert rest["next_page_id"] is None


async def test_a_repeated_request_makes_one_archive_and_one_fork(client: Client) -> None:
    conversation_id, _ = await start(client)
    for end in ("archives", "fork"):
        path, headers = f"{STARTS}/{conversation_id}/{end}", {"Idempotency-Key": "once"}
        first = await client.post(path, json={}, headers=headers)
        assert first.status in (200, 201), first.text
        again = await client.post(path, json={}, headers=headers)
        assert (again.status, again.body) == (first.status, first.body)
    assert len((await client.get("/api/v1/archives")).json()["items"]) == 1
    assert (await client.get(f"{STARTS}/start-tasks/count")).json() == 2


@pytest.mark.parametrize("why_not", ["", "the cluster has no snapshots"])
async def test_a_fork_has_the_workspace_in_a_sandbox_of_its_own(
    client: Client,
    service: Service,
    fake_agent: PackingAgent,
    fake_world: TroubledWorld,
    why_not: str,
) -> None:
    fake_world.why_no_copies = why_not
    if not why_not:
        fake_world.capabilities -= {Capability.COPIES}
    await service.restart()
    conversation_id, sandbox_id = await start(client)
    answer = await client.post(f"{STARTS}/{conversation_id}/fork", json={"title": "Another way"})
    assert answer.status == 200, answer.text
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    forked = await client.conversation(ended["app_conversation_id"])
    assert forked["title"] == "Another way"
    assert forked["sandbox_id"] != sandbox_id
    assert fake_agent.unpacked(forked["sandbox_id"])["notes"] == "remember"


async def test_a_fork_that_is_refused_saves_nothing(
    client: Client, service: Service, fake_agent: PackingAgent, fake_world: TroubledWorld
) -> None:
    fake_world.why_no_copies = "the cluster has no snapshots"
    await reconfigure(service, sandboxes={"max_running": 1})
    conversation_id, sandbox_id = await start(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    await start(client)
    answer = await client.post(f"{STARTS}/{conversation_id}/fork", json={"when_full": "reject"})
    assert answer.status == 429, answer.text
    assert await archives(client) == []


async def test_a_fork_has_all_files_where_the_backend_copies_them(
    client: Client, fake_agent: PackingAgent, fake_world: TroubledWorld, tmp_path: Path
) -> None:
    conversation_id, sandbox_id = await start(client)
    parent = await client.conversation(conversation_id)
    files = fake_world.sandboxes[sandbox_id].directory = tmp_path / "files"
    files.mkdir()
    (files / "notes").write_text("remember")
    # It is not woken for that.
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    answer = await client.post(f"{STARTS}/{conversation_id}/fork")
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    forked = await client.conversation(ended["app_conversation_id"])
    own = fake_world.sandboxes[forked["sandbox_id"]]
    assert own.directory is not None
    assert (own.directory / "notes").read_text() == "remember"
    assert own.order.copy_of == sandbox_id
    assert forked["session_api_key"] not in (None, parent["session_api_key"])
    assert fake_agent.downloads == 0
    assert (await client.conversation(conversation_id))["sandbox_status"] == "PAUSED"
    assert fake_world.layers == {}


async def test_a_fork_fails_where_what_it_copies_goes_before(
    client: Client, fake_world: TroubledWorld
) -> None:
    conversation_id, _ = await start(client)
    held = fake_world.hold("create")
    answer = await client.post(f"{STARTS}/{conversation_id}/fork")
    await client.delete(f"{STARTS}/{conversation_id}")
    await eventually(lambda: len(fake_world.sandboxes) == 0)
    held.set()
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "ERROR"
    assert "no such sandbox" in ended["detail"]


async def test_a_fork_of_what_is_deleted_meanwhile_is_not_found(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    fake_agent.hold("info")
    async with asyncio.TaskGroup() as group:
        fork = group.create_task(client.post(f"{STARTS}/{conversation_id}/fork"))
        await fake_agent.waits("info")
        assert (await client.delete(f"{STARTS}/{conversation_id}")).status == 200
        fake_agent.let_go()
    assert fork.result().status == 404
    assert (await client.get(f"{STARTS}/start-tasks/count")).json() == 0


async def test_a_fork_copies_no_sandbox_that_others_work_in_too(
    client: Client, fake_world: TroubledWorld, fake_agent: PackingAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    other = await client.start_conversation(sandbox_id=sandbox_id)
    assert (await client.conversation(other))["sandbox_id"] == sandbox_id
    answer = await client.post(f"{STARTS}/{conversation_id}/fork")
    ended = await client.end_of_start(answer.json()["id"])
    assert ended["status"] == "READY", ended["detail"]
    forked = await client.conversation(ended["app_conversation_id"])
    assert fake_world.sandboxes[forked["sandbox_id"]].order.copy_of == ""
    assert fake_agent.unpacked(forked["sandbox_id"])["notes"] == "remember"


async def test_one_that_tar_refuses_or_that_is_too_large_fails_with_the_reason(
    client: Client, service: Service, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    refused = CommandResult(exit_code=2, stdout="", stderr="tar: no room here")
    fake_agent.on_command(r"^tar --exclude", refused)
    assert "no room here" in (await save(client, conversation_id))["detail"]
    fake_agent.on_command(r"^tar --exclude", CommandResult(exit_code=1, stdout="", stderr=""))
    fake_agent.packed = b"x" * 2000
    await configure(service, max_bytes=1024)
    assert "exceeds the limit for archives" in (await save(client, conversation_id))["detail"]


async def test_one_that_goes_between_tar_and_its_download_fails_with_that_reason(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, _ = await start(client)
    fake_agent.packed = b""
    failed = await save(client, conversation_id)
    assert failed["state"] == "failed"
    assert failed["detail"] == "The tar file in the sandbox has been deleted"


async def test_nothing_is_left_of_a_workspace_that_takes_too_long(
    client: Client, service: Service, fake_agent: PackingAgent
) -> None:
    await configure(service, save_seconds=0.1)
    conversation_id, _ = await start(client)
    fake_agent.packed = pack_zeros(2**30)
    failed = await save(client, conversation_id)
    assert (failed["state"], failed["detail"]) == ("failed", "it took longer than 0.1 s")
    assert files_of(service) == []


async def test_a_file_that_is_made_as_the_time_ends_is_removed(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def touch_late(path: Path, mode: int = 0o666, *, exist_ok: bool = True) -> None:
        if path.suffix == ".part":
            time.sleep(0.5)
        touch(path, mode, exist_ok)

    monkeypatch.setattr(Path, "touch", touch_late)
    await configure(service, save_seconds=0.2)
    conversation_id, _ = await start(client)
    assert (await save(client, conversation_id))["state"] == "failed"
    await asyncio.sleep(0.5)
    assert files_of(service) == []


async def test_a_bug_while_a_workspace_is_saved_ends_in_a_failure(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(sandbox: Sandbox) -> NoReturn:
        raise ZeroDivisionError(f"a bug at {sandbox.agent_url}")

    conversation_id, sandbox_id = await start(client)
    sandboxes = copy.copy(service.app[SANDBOXES])
    monkeypatch.setattr(sandboxes, "agent_of", reach)
    broken = Archives(
        db=service.app[DATABASE],
        directory=service.data_dir / "archives",
        sandboxes=sandboxes,
        supervisor=service.app[SUPERVISOR],
        config=service.config.archives,
    )
    archive = await begun_archive(service, conversation_id, sandbox_id)
    await service.app[DATABASE].write(lambda tx: broken.insert(tx, archive))
    failed = await saved(client, archive.id)
    assert (failed["state"], failed["detail"]) == (
        "failed",
        "an unexpected error, which is in the server's log",
    )


async def test_an_id_that_leads_elsewhere_removes_no_file_there(
    client: Client, service: Service
) -> None:
    """As a database may have it that was restored from a backup made to harm."""
    conversation_id, sandbox_id = await start(client)
    elsewhere = service.data_dir / "elsewhere.tar.zst"
    elsewhere.write_bytes(b"kept")
    (service.data_dir / "archives").mkdir(exist_ok=True)
    archives = service.app[keys.ARCHIVES]
    archive = await begun_archive(service, conversation_id, sandbox_id)
    archive = msgspec.structs.replace(archive, id="../elsewhere", state=ArchiveState.FAILED)

    await service.app[DATABASE].write(lambda tx: archives.insert(tx, archive))
    await archives.delete(archive.user_id, archive.id)
    assert elsewhere.read_bytes() == b"kept"


async def test_a_start_saves_an_archive_whose_end_the_database_did_not_take(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox_id = await start(client)
    archive = await begun_archive(service, conversation_id, sandbox_id)
    await service.app[DATABASE].write(lambda tx: insert_archive(tx, archive))
    task = await client.start_task(archive_id=archive.id)
    ended = await client.end_of_start(task["id"])
    assert ended["status"] == "READY", ended["detail"]


async def test_an_archive_is_ready_though_its_sandbox_goes_at_the_end(
    client: Client, fake_agent: PackingAgent
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.post(f"/api/v1/sandboxes/{sandbox_id}/pause")
    fake_agent.let_download.clear()
    archive = (await client.post(f"{STARTS}/{conversation_id}/archives")).json()
    await eventually(lambda: fake_agent.downloads > 0)
    assert (await client.delete(f"/api/v1/sandboxes/{sandbox_id}")).status == 200
    fake_agent.let_download.set()
    assert (await saved(client, archive["id"]))["state"] == "ready"


async def test_a_culled_sandbox_that_was_saved_is_still_woken_by_a_message(
    client: Client, service: Service
) -> None:
    conversation_id, sandbox_id = await start(client)
    await client.wait_for_execution(conversation_id, "finished")
    await reconfigure(service, sandboxes={"pause_after_seconds": 0.5})
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    assert (await save(client, conversation_id))["state"] == "ready"
    await client.wait_for_sandbox(sandbox_id, "PAUSED")
    answer = await client.post(
        f"{STARTS}/{conversation_id}/send-message",
        json={"content": [{"type": "text", "text": "go on"}]},
    )
    assert answer.status == 200, answer.text


async def test_old_archives_and_those_over_the_total_are_deleted(
    client: Client, service: Service
) -> None:
    conversation_id, _ = await start(client)
    first, second = [await save(client, conversation_id) for _ in range(2)]
    await configure(service, max_total_bytes=first["size_bytes"] + 10)
    assert [one["id"] for one in await until(lambda: rest(client, 1))] == [second["id"]]
    await configure(service, keep_seconds=0.001)
    await until(lambda: is_empty(client))
    assert files_of(service) == []


async def rest(client: Client, count: int) -> list[dict[str, Any]]:
    found = await archives(client)
    return found if len(found) == count else []


async def is_empty(client: Client) -> bool:
    return not await archives(client)


async def test_what_is_left_of_an_interrupted_save_is_removed_at_the_start(
    client: Client, service: Service
) -> None:
    conversation_id, _ = await start(client)
    archive = await save(client, conversation_id)
    folder = service.data_dir / "archives"
    await service.stop()
    for name in (f"{archive['id']}.part", f"{UNKNOWN}.tar.zst", f"{UNKNOWN}.draft"):
        (folder / name).write_bytes(b"left")
    await service.start()
    assert [file.name for file in files_of(service)] == [f"{archive['id']}.tar.zst"]


async def test_what_is_no_archive_stays_and_does_not_keep_the_server_from_starting(
    client: Client, service: Service
) -> None:
    """As `archives` is that of a disk of its own, mounted there."""
    conversation_id, _ = await start(client)
    archive = await save(client, conversation_id)
    folder = service.data_dir / "archives"
    await service.stop()
    (folder / "lost+found").mkdir()
    (folder / f"{UNKNOWN}.part").mkdir()
    for name in ("notes.txt", "other.tar.zst"):
        (folder / name).write_bytes(b"somebody's")
    before = files_of(service)
    await service.start()
    assert files_of(service) == before
    assert [one["id"] for one in await archives(client)] == [archive["id"]]


async def test_an_archive_whose_file_is_gone_is_not_said_to_be_ready(
    client: Client, service: Service
) -> None:
    """As where a backup without archives was restored."""
    conversation_id, _ = await start(client)
    archive = await save(client, conversation_id)
    path = f"{ARCHIVES}/{archive['id']}"
    [file] = files_of(service)
    away = service.data_dir / "away"
    file.rename(away)
    gone = (await client.get(path)).json()
    assert (gone["state"], gone["detail"]) == ("failed", "its file is missing")
    assert await archives(client) == [gone]
    assert (await client.post(STARTS, json={"archive_id": archive["id"]})).status == 409
    away.rename(file)
    assert (await client.get(path)).json() == archive
    file.unlink()
    assert (await client.delete(path)).status == 200


async def test_what_cannot_be_saved_or_begun_with_is_refused(
    client: Client, fake_world: TroubledWorld
) -> None:
    assert (await client.post(f"{STARTS}/{UNKNOWN}/archives")).status == 404
    assert (await client.post(f"{STARTS}/{UNKNOWN}/fork")).status == 404
    assert (await client.post(STARTS, json={"archive_id": UNKNOWN})).status == 404
    assert (await client.post(STARTS, json={"archive_id": "../../etc"})).status == 422
    assert (await client.get(f"{ARCHIVES}/nonsense")).status == 422
    conversation_id, sandbox_id = await start(client)
    archive = await save(client, conversation_id)
    body = {"archive_id": archive["id"], "selected_repository": "octo/repo"}
    assert (await client.post(STARTS, json=body)).status == 400
    fake_world.vanish(sandbox_id)
    await client.wait_for_sandbox(sandbox_id, "MISSING")
    assert (await client.post(f"{STARTS}/{conversation_id}/archives")).status == 410
