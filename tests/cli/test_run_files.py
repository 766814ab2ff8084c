"""What comes back from a sandbox into a directory: all of it, and no repository."""

import hashlib
import io
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentsvc.base.values import Secret
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import Api, Query, RequestRefused, StreamMessage
from agentsvc.cli.run import RunOptions
from agentsvc.cli.run.conversation import run_task
from agentsvc.cli.run.files import apply_changes, download_changes, find_changes, upload_directory
from agentsvc.cli.run.watch import ConversationWatch, RunOutcome, View
from agentsvc.cli.talk import CONVERSATIONS, SANDBOXES

DATA = (b"new", 0o644)
CONVERSATION = {
    "id": "c" * 32,
    "sandbox_id": "s",
    "sandbox_status": "RUNNING",
    "execution_status": "finished",
    "conversation_url": "/api/conversations/c",
}


def files_of(directory: Path) -> list[str]:
    return sorted(str(one.relative_to(directory)) for one in directory.rglob("*") if one.is_file())


def test_files_and_directories_take_each_others_places(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("old")
    (tmp_path / "parts/deep").mkdir(parents=True)
    (tmp_path / "parts/deep/one").write_text("old")
    changed = {"config/default": DATA, "parts": DATA, "n" * 255: DATA}
    assert apply_changes(tmp_path, changed, ["config", "parts/deep/one"]) == []
    assert files_of(tmp_path) == ["config/default", "n" * 255, "parts"]


def test_a_directory_that_gets_another_file_keeps_its_rights(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    (tmp_path / "private/a").write_text("old")
    assert apply_changes(tmp_path, {"private/b": DATA}, ["private/a"]) == []
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_a_link_to_itself_keeps_no_other_out(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    failures = apply_changes(tmp_path, {"loop/a": DATA, "n\0": DATA, "z": DATA}, ["loop/b"])
    assert len(failures) == 3
    assert files_of(tmp_path) == ["z"]


def test_a_file_that_cannot_be_written_keeps_no_other_out(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/own").write_text("not the agent's")
    [failure] = apply_changes(tmp_path, {"a": DATA, "taken": DATA, "z": DATA}, [])
    assert "taken" in failure
    assert files_of(tmp_path) == ["a", "taken/own", "z"]


@pytest.mark.parametrize("place", ["docs/", "a/b/", ""])
def test_a_bare_repository_is_neither_made_nor_changed_nor_deleted(
    tmp_path: Path, place: str
) -> None:
    parts = [f"{place}{part}" for part in ("HEAD", "config", "objects/x", "refs/x")]
    found = dict.fromkeys(["src/file", *parts], DATA)
    kept = ["src/file"] if place else []
    assert [*find_changes(tmp_path, found, {})[0]] == kept
    # Nor where it is here already, and is sent with the other files, or not.
    sent = dict.fromkeys(["src/file", *parts], "its checksum")
    assert find_changes(tmp_path, {}, sent) == ({}, kept)
    for part in parts:
        (tmp_path / part).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / part).touch()
    assert find_changes(tmp_path, {f"{place}config": DATA}, {}) == ({}, [])


def test_names_that_no_file_can_have_are_changes_as_others(tmp_path: Path) -> None:
    found = dict.fromkeys(["n" * 300 + "/file", "head/a", "objects/b", "refs/c"], DATA)
    assert find_changes(tmp_path, found, {"gone": "its checksum"}) == (found, ["gone"])


def packed_of(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in files.items():
            head = tarfile.TarInfo(name)
            head.size = len(content)
            archive.addfile(head, io.BytesIO(content))
    return packed.getvalue()


class Sandbox(Api):
    """A server whose sandbox has the same files each time, of which not all may be readable."""

    def __init__(self, packed: bytes, *, is_whole: bool = True, status: str = "finished") -> None:
        super().__init__("http://127.0.0.1:1", Secret("key"))
        self._packed = packed
        self._is_whole = is_whole
        self._status = status
        self.deleted: list[str] = []
        self.sent = b""

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None) -> Any:
        del query
        if method == "DELETE":
            self.deleted.append(path)
        if path == CONVERSATIONS:
            ready = {"status": "READY", "detail": None, "app_conversation_id": CONVERSATION["id"]}
            return ready if method == "POST" else [CONVERSATION]
        failed = not self._is_whole and "tar " in str(body)
        done = {"exit_code": int(failed), "stderr": "Permission denied"}
        return [{"working_dir": "/w"}] if path == SANDBOXES else done

    @contextmanager
    def open(self, *_: Any, body: bytes | None = None, **__: Any) -> Iterator[Any]:
        self.sent = body or b""
        yield None

    def stream(self, *_: Any, **__: Any) -> Iterator[StreamMessage]:
        state = {"key": "execution_status", "value": self._status}
        yield StreamMessage(type="event", id=0, data=state)
        yield StreamMessage(type="ready", id=None, data={})

    def parts(self, *_: Any, **__: Any) -> Iterator[bytes]:
        if not self._packed:
            raise CommandFailed("File not found")
        yield self._packed


@pytest.mark.parametrize(
    ("is_whole", "told"),
    [(True, "not confirmed"), (False, "cannot be copied: Permission denied")],
)
def test_what_is_not_written_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, *, is_whole: bool
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    there = tmp_path / "there"
    there.mkdir()
    (there / "unreadable").touch()
    packed = packed_of({"made": b""})
    api, sent = Sandbox(packed, is_whole=is_whole), {"unreadable": "its checksum"}
    with pytest.raises(CommandFailed, match=told) as raised:
        download_changes(api, CONVERSATION, there, sent, agrees=not is_whole)
    [kept] = tmp_path.glob("there.*.tar.gz")
    assert raised.value.hint.endswith(f"the sandbox's archive is stored in {kept}")
    assert kept.read_bytes() == packed
    assert files_of(there) == ["unreadable"]


def test_what_is_not_wanted_is_kept_with_all_else(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    packed = packed_of({"made": b"", "../outside": b""})
    with pytest.raises(CommandFailed, match="an invalid file"):
        download_changes(Sandbox(packed), CONVERSATION, there, {}, agrees=True)
    [kept] = tmp_path.glob("there.*.tar.gz")
    assert kept.read_bytes() == packed


def test_why_nothing_was_packed_is_told(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be copied: Permission denied"):
        download_changes(Sandbox(b"", is_whole=False), CONVERSATION, tmp_path, {}, agrees=True)


def test_what_was_not_sent_or_was_changed_here_since_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    subprocess.run(["git", "init", "--quiet", there], check=True)
    (there / ".gitignore").write_text(".env\nbuilt\n")
    for name in (".env", "changed", "deleted", "made", "same"):
        (there / name).write_text("of the user")
    for name in ("built", "like"):
        (there / name).write_text("of the agent")
    sum_of = {text: hashlib.sha256(text.encode()).hexdigest() for text in ("sent", "of the user")}
    sent = dict.fromkeys(("changed", "deleted", "like"), sum_of["sent"])
    sent |= {"same": sum_of["of the user"]}
    names = (".env", "built", "changed", "like", "made", "same", "new")
    made = dict.fromkeys(names, b"of the agent")
    with pytest.raises(CommandFailed, match="3 files were changed locally"):
        download_changes(Sandbox(packed_of(made)), CONVERSATION, there, sent, agrees=True)
    said = capsys.readouterr().err
    assert "not overwritten, since it was not uploaded: .env" in said
    assert "built" not in said
    kept = dict.fromkeys(("changed", "deleted", "made"), "of the user")
    assert said.count("not overwritten, since it was changed locally: ") == len(kept)
    written = dict.fromkeys(("built", "like", "same", "new"), "of the agent")
    texts = {one.name: one.read_text() for one in there.iterdir() if one.is_file()}
    assert texts == kept | written | {".env": "of the user", ".gitignore": ".env\nbuilt\n"}
    assert len([*tmp_path.glob("there.*.tar.gz")]) == 1


def test_what_git_ignores_is_not_sent_where_git_does_not_say_what_that_is(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "below").mkdir()
    for directory in (tmp_path, tmp_path / "below"):
        (directory / "ignored").write_text("secret")
        (directory / "known").write_text("known")
        assert {"known"} <= upload_directory(Sandbox(b""), CONVERSATION, directory).keys()
    (tmp_path / ".git/index").write_text("no index")
    for directory in (tmp_path, tmp_path / "below"):
        api = Sandbox(b"")
        with pytest.raises(CommandFailed, match="git cannot list"):
            upload_directory(api, CONVERSATION, directory)
        assert api.sent == b""


def test_a_directory_that_is_no_repository_needs_no_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "file").touch()
    assert [*upload_directory(Sandbox(b""), CONVERSATION, tmp_path)] == ["file"]


@pytest.mark.parametrize("is_brought", [True, False])
def test_a_sandbox_is_deleted_once_what_it_made_is_brought_back(
    tmp_path: Path, *, is_brought: bool
) -> None:
    api = Sandbox(packed_of({"made": b"x"}) if is_brought else b"")
    options = RunOptions(task="x", directory=tmp_path, agrees=True, as_json=True)
    if is_brought:
        run_task(api, options, is_removed=True)
    else:
        with pytest.raises(CommandFailed, match="File not found"):
            run_task(api, options, is_removed=True)
    assert bool(api.deleted) == is_brought


def test_who_answers_nothing_to_what_an_agent_asks_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    api = Sandbox(b"", status="waiting_for_confirmation")
    watch = ConversationWatch(api, CONVERSATION, View(as_json=True), agrees=False)
    assert watch.follow() is RunOutcome.LEFT


def test_an_agent_that_is_seen_to_work_after_an_interruption_is_interrupted_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = iter((["running", "Ctrl-C"], ["ready"], ["paused", "ready"]))

    class Interrupted(Sandbox):
        def stream(self, *_: Any, **__: Any) -> Iterator[StreamMessage]:
            for number, one in enumerate(next(streams)):
                if one == "Ctrl-C":
                    raise KeyboardInterrupt
                state = {"key": "execution_status", "value": one}
                kind = "ready" if one == "ready" else "event"
                yield StreamMessage(type=kind, id=number, data=state)

    monkeypatch.setattr("sys.stdin", io.StringIO())
    watch = ConversationWatch(Interrupted(b""), CONVERSATION, View(as_json=True), agrees=False)
    assert watch.follow() is RunOutcome.LEFT


def test_a_sandbox_is_deleted_where_its_agent_was_told_nothing(tmp_path: Path) -> None:
    class Refusing(Sandbox):
        def call(self, method: str, path: str, **more: Any) -> Any:
            if path.endswith("/send-message"):
                raise RequestRefused(402, "You have spent what you may spend")
            return super().call(method, path, **more)

    api = Refusing(b"")
    with pytest.raises(RequestRefused, match="what you may spend"):
        run_task(api, RunOptions(task="x", directory=tmp_path, as_json=True), is_removed=True)
    assert len(api.deleted) == 1
