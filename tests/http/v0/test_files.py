"""The workspace of a conversation in the older form, through the socket."""

import asyncio
import io
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentsvc.accounts.keys import Role
from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import Conflict
from agentsvc.http.v0 import workspaces
from agentsvc.http.v0.workspaces import sort_names, to_zip
from agentsvc.testing.backend import FakeWorld
from tests.fake_agent import FakeAgent, listed, make_long_names, run_in_pieces
from tests.fake_sandbox import FakeSandbox
from tests.http.v0.steps import PATH, UNKNOWN_ID, start, start_running, wait_for_status
from tests.service import Answer, Client, Service

BINARY = bytes(range(256)) * 3
ROUTES = (
    "list-files",
    "select-file?file=a",
    "zip-directory",
    "git/changes",
    "git/diff?path=a",
    "vscode-url",
    "web-hosts",
    "microagents",
)
NEEDS_AGENT = ROUTES[:5] + ROUTES[7:]


async def sandbox_of(client: Client, fake_agent: FakeAgent, name: str) -> tuple[FakeSandbox, str]:
    """Return the sandbox a conversation is in, and where in it the project is."""
    config = (await client.get(f"{PATH}/{name}/config")).json()
    conversation = fake_agent.find_conversation(name)
    assert conversation is not None
    root = conversation.body["workspace"]["working_dir"]
    return fake_agent.sandboxes[config["runtime_id"]], root


def done(output: str, exit_code: int = 0) -> CommandResult:
    return CommandResult(exit_code=exit_code, stdout=output, stderr="")


async def upload(
    client: Client, name: str, *files: tuple[str, bytes], field: str = "files"
) -> Answer:
    form = aiohttp.FormData(quote_fields=False)
    for filename, data in files:
        form.add_field(field, io.BytesIO(data), filename=filename)
    return await client.post(f"{PATH}/{name}/upload-files", data=form)


async def test_directories_are_listed_before_files(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    listing = "b.txt\nA.txt\n.git/\n.env\nzoo/\nnode_modules/\nout.log\n//\nout.log\n"
    fake_agent.on_command("ls -1Ap", listed(listing))
    answer = await client.get(f"{PATH}/{name}/list-files")
    assert (answer.status, answer.json()) == (200, ["zoo/", ".env", "A.txt", "b.txt"])


async def test_a_listing_below_names_the_directory(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    fake_agent.on_command("ls -1Ap", listed("x.py\n//\n"))
    answer = await client.get(f"{PATH}/{name}/list-files?path=src/")
    assert answer.json() == ["src/x.py"]
    assert f"cd -- {root}/src " in sandbox.commands[-1]


async def test_names_are_whole_however_the_listing_is_read(
    client: Client, fake_agent: FakeAgent, tmp_path: Path
) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    folder = tmp_path / "names"
    names = make_long_names(folder)
    await client.get(f"{PATH}/{name}/list-files")
    command = sandbox.commands[-2].replace(root, str(folder))
    fake_agent.on_command("ls -1Ap", run_in_pieces(command))
    assert (await client.get(f"{PATH}/{name}/list-files")).json() == names
    # There may be no gzip.
    fake_agent.on_command("ls -1Ap", done("plain.txt\n//\n"))
    assert (await client.get(f"{PATH}/{name}/list-files")).json() == ["plain.txt"]


async def test_what_does_not_exist_is_empty(client: Client) -> None:
    name = await start_running(client)
    assert (await client.get(f"{PATH}/{name}/list-files?path=nowhere")).json() == []


def test_the_command_that_lists_does_so(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    for folder in ("src", "build", "with space"):
        (tmp_path / folder).mkdir()
    for file in ("B.txt", "a.txt", "c\u2028.txt", "x.log", "ä.txt"):
        (tmp_path / file).touch()
    command = workspaces._LIST.format(folder=f"'{tmp_path}'")  # noqa: SLF001  # what a shell makes of it
    ran = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, text=True)
    shown = sort_names(ran.stdout)
    assert shown == ["src/", "with space/", ".gitignore", "a.txt", "B.txt", "c\u2028.txt", "ä.txt"]


async def test_a_text_file_is_read(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    sandbox.files[f"{root}/src/a.py"] = "print('ä')\n".encode()
    for path in ("src/a.py", f"{root}/src/a.py"):
        answer = await client.get(f"{PATH}/{name}/select-file?file={path}")
        assert (answer.status, answer.json()) == (200, {"code": "print('ä')\n"})


async def test_a_file_that_cannot_be_shown_is_refused(
    client: Client, fake_agent: FakeAgent
) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    sandbox.files[f"{root}/a.bin"] = BINARY
    binary = await client.get(f"{PATH}/{name}/select-file?file=a.bin")
    assert (binary.status, binary.json()["error"]) == (415, "Unable to open binary file: a.bin")
    missing = await client.get(f"{PATH}/{name}/select-file?file=b")
    assert missing.status == 404
    assert missing.json()["error"].startswith("Error opening file: ")
    sandbox.fail_next(400, "/api/file/download")
    folder = await client.get(f"{PATH}/{name}/select-file?file=src")
    assert folder.status == 400
    unnamed = await client.get(f"{PATH}/{name}/select-file")
    assert (unnamed.status, unnamed.json()["detail"][0]["loc"]) == (422, ["query", "file"])


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x"])
async def test_nothing_outside_of_the_workspace_is_read(client: Client, path: str) -> None:
    name = await start_running(client)
    for route in ("list-files?path=", "select-file?file=", "git/diff?path="):
        answer = await client.get(f"{PATH}/{name}/{route}{path}")
        assert (answer.status, answer.json()["code"]) == (400, "bad_request")


async def test_files_arrive_byte_for_byte(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    large = b"\0\r\n--x" * 200_000
    answer = await upload(client, name, ("a.bin", BINARY), ("dir/large", large), ("ä b.txt", b""))
    assert answer.status == 200, answer.text
    assert answer.json() == {
        "uploaded_files": [f"{root}/a.bin", f"{root}/large", f"{root}/ä b.txt"],
        "skipped_files": [],
    }
    assert sandbox.files[f"{root}/a.bin"] == BINARY
    assert sandbox.files[f"{root}/large"] == large
    assert sandbox.files[f"{root}/ä b.txt"] == b""


async def test_a_file_may_be_larger_than_other_bodies(
    client: Client, fake_agent: FakeAgent
) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    answer = await upload(client, name, ("large", bytes(11 * 1024 * 1024)))
    assert answer.status == 200
    assert len(sandbox.files[f"{root}/large"]) == 11 * 1024 * 1024


async def test_a_file_that_cannot_be_written_is_skipped(
    client: Client, fake_agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    monkeypatch.setattr(workspaces, "UPLOAD_MAX_BYTES", 100_000)
    answer = await upload(
        client, name, ("..", b"x"), ("large", bytes(300_000)), ("small", b"small")
    )
    assert answer.status == 200, answer.text
    body = answer.json()
    assert body["uploaded_files"] == [f"{root}/small"]
    assert [one["name"] for one in body["skipped_files"]] == ["..", "large"]
    assert set(sandbox.files) >= {f"{root}/small"}
    assert f"{root}/large" not in sandbox.files


@pytest.mark.parametrize("status", [400, 500])
async def test_a_file_that_the_agent_refuses_is_skipped(
    client: Client, fake_agent: FakeAgent, status: int
) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    sandbox.fail_next(status, "/api/file/upload")
    answer = await upload(client, name, ("src", b"x"), ("next", b"small"))
    assert answer.status == 200, answer.text
    body = answer.json()
    assert body["uploaded_files"] == [f"{root}/next"]
    assert [one["name"] for one in body["skipped_files"]] == ["src"]
    # Another server is there.
    sandbox.fail_next(401, "/api/file/upload")
    assert (await upload(client, name, ("src", b"x"), ("next", b"small"))).status == 502


async def test_what_is_no_form_with_files_is_refused(client: Client) -> None:
    name = await start_running(client)
    other_field = await upload(client, name, ("a", b"x"), field="other")
    assert (other_field.status, other_field.json()["detail"][0]["loc"]) == (422, ["body", "files"])
    path = f"{PATH}/{name}/upload-files"
    assert (await client.post(path, json={})).status == 415
    assert (await client.post(path)).status == 415
    for kind in ("multipart/form-data", "multipart/form-data; boundary=x"):
        broken = await client.post(path, data=b"nonsense", headers={"Content-Type": kind})
        assert (broken.status, broken.json()["code"]) == (400, "malformed_body")


_FILE = b'Content-Disposition: form-data; name="files"; filename="a"\r\n'
_NESTED = b"".join(
    b"--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\n\r\n" % (n, n + 1) for n in range(1200)
)


@pytest.mark.parametrize(
    "head",
    [
        b"no colon\r\n" + _FILE,
        b"a name: x\r\n" + _FILE,
        b"\xff: x\r\n" + _FILE,
        b"X: a\x01b\r\n" + _FILE,
        b"X: " + b"x" * 10_000 + b"\r\n" + _FILE,
        b"X: x\r\n" * 200 + _FILE,
        b"Content-Type: multipart/mixed; boundary=y\r\n\r\n--y\r\n" + _FILE + b"\r\nx\r\n--y--",
        b"Content-Type: multipart/mixed; boundary=0\r\n\r\n" + _NESTED,
        b'Content-Disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40,
        b'Content-Disposition: form-data; name="_charset_"\r\n\r\n' + b"\xff",
    ],
    ids=lambda head: head[:60],
)
async def test_a_form_that_cannot_be_read_is_refused(client: Client, head: bytes) -> None:
    name = await start_running(client)
    data = b"--x\r\n" + head + b"\r\n\r\nx\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await client.post(f"{PATH}/{name}/upload-files", data=data, headers=kind)
    assert (answer.status, answer.json()["code"]) == (400, "malformed_body")


async def test_a_name_that_is_no_text_is_told_as_far_as_it_is(client: Client) -> None:
    name = await start_running(client)
    data = b"--x\r\n" + _FILE.replace(b'"a"', b'"a\xff.txt"') + b"\r\nx\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await client.post(f"{PATH}/{name}/upload-files", data=data, headers=kind)
    assert answer.status == 200, answer.text
    assert [one["name"] for one in answer.json()["skipped_files"]] == ["a?.txt"]


async def test_a_file_that_is_too_large_is_told_by_its_name_alone(
    client: Client, fake_agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await start_running(client)
    monkeypatch.setattr(workspaces, "UPLOAD_MAX_BYTES", 10)
    # What is before the name is dropped, and is no text here.
    head = _FILE.replace(b'"a"', b'"a\xff/large.txt"')
    data = b"--x\r\n" + head + b"\r\n" + b"x" * 100_000 + b"\r\n--x--\r\n"
    kind = {"Content-Type": "multipart/form-data; boundary=x"}
    answer = await client.post(f"{PATH}/{name}/upload-files", data=data, headers=kind)
    assert answer.status == 200, answer.text
    assert [one["name"] for one in answer.json()["skipped_files"]] == ["large.txt"]


def tar_of(folder: Path) -> bytes:
    """Return what the command that packs a workspace writes."""
    command = workspaces._PACK.format(folder=f"'{folder}'", limit=10**6)  # noqa: SLF001  # as above
    ran = subprocess.run(["/bin/sh", "-c", command], check=True, capture_output=True, text=True)
    packed = Path(ran.stdout)
    data = packed.read_bytes()
    packed.unlink()
    return data


async def test_a_workspace_is_downloaded_whole(
    client: Client, fake_agent: FakeAgent, tmp_path: Path
) -> None:
    name = await start_running(client)
    sandbox, _ = await sandbox_of(client, fake_agent, name)
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "config").write_text("[core]\n")
    (project / "a.bin").write_bytes(BINARY)
    (project / "link").symlink_to("a.bin")
    sandbox.files["/tmp/packed"] = await asyncio.to_thread(tar_of, project)  # noqa: S108  # in a fake
    fake_agent.on_command("tar -czf", done("/tmp/packed"))  # noqa: S108  # in a fake
    answer = await client.get(f"{PATH}/{name}/zip-directory")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/zip")
    assert 'filename="workspace.zip"' in answer.headers["Content-Disposition"]
    archive = zipfile.ZipFile(io.BytesIO(answer.body))
    assert sorted(archive.namelist()) == [".git/", ".git/config", "a.bin", "link"]
    assert archive.read("a.bin") == BINARY
    assert archive.read("link") == b"a.bin"
    assert sandbox.commands[-1] == "rm -f -- /tmp/packed"


@pytest.mark.parametrize(("exit_code", "status"), [(4, 409), (3, 502)])
async def test_a_workspace_that_cannot_be_packed_is_no_zip(
    client: Client, fake_agent: FakeAgent, exit_code: int, status: int
) -> None:
    name = await start_running(client)
    fake_agent.on_command("tar -czf", done("", exit_code))
    answer = await client.get(f"{PATH}/{name}/zip-directory")
    assert (answer.status, answer.json()["error"]) == (status, answer.json()["detail"])


def test_a_workspace_that_is_too_large_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_UNPACKED_MAX_BYTES", 100)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        entry = tarfile.TarInfo("zeros")
        entry.size = 101
        archive.addfile(entry, io.BytesIO(bytes(101)))
    with pytest.raises(Conflict):
        to_zip(out.getvalue())


async def test_changes_are_shown_by_their_letters(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    assert (await client.get(f"{PATH}/{name}/git/changes")).json() == []
    sandbox.git_changes[root] = [
        {"status": status, "path": status.lower()}
        for status in ("MOVED", "ADDED", "DELETED", "UPDATED")
    ]
    changes = (await client.get(f"{PATH}/{name}/git/changes")).json()
    assert [change["status"] for change in changes] == ["R", "A", "D", "M"]
    assert changes[0] == {"status": "R", "path": "moved"}


async def test_both_sides_of_a_file_are_shown(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, root = await sandbox_of(client, fake_agent, name)
    sandbox.git_diffs[f"{root}/a"] = {"modified": "new", "original": None}
    answer = await client.get(f"{PATH}/{name}/git/diff?path=a")
    assert (answer.status, answer.json()) == (200, {"modified": "new", "original": ""})
    missing = await client.get(f"{PATH}/{name}/git/diff?path=b")
    assert (missing.status, missing.json()["error"]) == (400, "Error getting diff: b")
    assert (await client.get(f"{PATH}/{name}/git/diff")).status == 422


async def test_a_sandbox_without_editor_and_workers_has_no_places(client: Client) -> None:
    name = await start_running(client)
    assert (await client.get(f"{PATH}/{name}/vscode-url")).json() == {"vscode_url": None}
    assert (await client.get(f"{PATH}/{name}/web-hosts")).json() == {"hosts": {}}


async def test_what_the_agent_has_learned_is_listed(client: Client, fake_agent: FakeAgent) -> None:
    name = await start_running(client)
    sandbox, _ = await sandbox_of(client, fake_agent, name)
    skill: dict[str, Any] = {"name": "git", "type": "knowledge", "content": "Commit.", "more": 1}
    others = [{**skill, "triggers": odd} for odd in (None, 5)]
    sandbox.skills = [{**skill, "triggers": ["commit"]}, *others]
    answer = await client.get(f"{PATH}/{name}/microagents")
    assert answer.status == 200
    first, *rest = answer.json()["microagents"]
    assert first == {
        "name": "git",
        "type": "knowledge",
        "content": "Commit.",
        "triggers": ["commit"],
        "inputs": [],
        "tools": [],
    }
    assert [one["triggers"] for one in rest] == [[], []]


async def test_what_does_not_run_has_no_workspace(client: Client, fake_world: FakeWorld) -> None:
    name = await start_running(client)
    await client.post(f"{PATH}/{name}/stop")
    await wait_for_status(client, name, "STOPPED")
    fake_world.stays_starting = True
    for stopped in (name, await start(client)):
        for route in NEEDS_AGENT:
            answer = await client.get(f"{PATH}/{stopped}/{route}")
            assert (answer.status, answer.json()["error"]) == (404, "Runtime not yet initialized")
        answer = await upload(client, stopped, ("a", b"x"))
        assert answer.status == 404


async def test_nobody_reads_the_workspace_of_another(client: Client, service: Service) -> None:
    name = await start_running(client)
    other = await service.make_client("other", Role.MEMBER)
    for route in ROUTES:
        for caller, wanted in ((other, name), (client, UNKNOWN_ID)):
            answer = await caller.get(f"{PATH}/{wanted}/{route}")
            assert (answer.status, answer.json()["code"]) == (404, "not_found")
    assert (await upload(other, name, ("a", b"x"))).status == 404
