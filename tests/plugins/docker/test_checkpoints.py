"""The program that keeps checkpoints inside of containers, run as they run it, without an engine."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.plugin_loading import part

if TYPE_CHECKING:
    from docker import checkpoints, plan
else:
    checkpoints, plan = part("docker.checkpoints"), part("docker.plan")

MANY = 10**9


class Inside:
    """Files of a sandbox, and what the server puts beside them."""

    def __init__(self, top: Path) -> None:
        self.work, self.home, self.private = top / "work", top / "home", top / "private"
        for path in (self.work, self.home, self.private):
            path.mkdir()
        self.prepare("")

    def prepare(self, rollback: str) -> None:
        archive = plan.checkpoint_archive(
            checkpoints.programs(), rollback, os.getgid(), may_write=False
        )
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(self.private, filter="tar")

    def take(self, name: str, *, keep: int = 3, max_bytes: int = MANY) -> tuple[int, str]:
        paths = map(str, (self.work, self.home, self.work / "not-there"))
        store = str(self.private / "checkpoints")
        ended = self._run("checkpointing", "take", store, name, str(keep), str(max_bytes), *paths)
        return ended.returncode, ended.stderr

    def start(self) -> tuple[int, str]:
        ended = self._run("fence.py", "echo", "started")
        return ended.returncode, ended.stdout + ended.stderr

    def _run(self, program: str, *args: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-I", "-S", str(self.private / program), *args]
        return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest.fixture
def inside(tmp_path: Path) -> Inside:
    return Inside(tmp_path)


def test_a_working_directory_that_is_gone_or_led_elsewhere_comes_back(inside: Inside) -> None:
    (inside.work / "notes").write_text("whole")
    assert inside.take("one") == (0, "")
    shutil.rmtree(inside.work)
    inside.prepare("first one")
    assert inside.start() == (0, "started\n")
    assert (inside.work / "notes").read_text() == "whole"

    elsewhere = inside.work.rename(inside.work.with_name("elsewhere"))
    (elsewhere / "new").write_text("is nobody's")
    inside.work.symlink_to(elsewhere)
    inside.prepare("second one")
    assert inside.start() == (0, "started\n")
    assert [path.name for path in inside.work.iterdir()] == ["notes"]
    assert (elsewhere / "new").exists()


def test_files_are_at_the_next_start_what_they_were(inside: Inside, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("not theirs")
    (inside.work / "same").write_text("same")
    (inside.work / "changed").write_text("good")
    (inside.work / "removed").mkdir()
    (inside.work / "removed" / "script").write_text("x")
    (inside.work / "removed" / "script").chmod(0o755)
    (inside.work / "link").symlink_to("same")
    (inside.work / "directory").mkdir()
    (inside.work / "file").write_text("x")
    (inside.home / ".config").write_text("good")
    (inside.home / "locked").write_text("not for oneself")
    (inside.home / "locked").chmod(0)
    kept = (inside.work / "same").stat().st_ino
    assert inside.take("a") == (0, "")

    (inside.work / "changed").write_text("bad!")
    (inside.work / "removed" / "script").unlink()
    (inside.work / "removed").rmdir()
    (inside.work / "link").unlink()
    (inside.work / "link").symlink_to(outside)
    (inside.work / "directory").rmdir()
    (inside.work / "directory").symlink_to(tmp_path)
    (inside.work / "file").unlink()
    (inside.work / "file").mkdir()
    (inside.work / "new").mkdir(mode=0o500)
    (inside.home / ".config").unlink()
    os.mkfifo(inside.home / "pipe")
    assert inside.start() == (0, "started\n")
    assert (inside.work / "changed").read_text() == "bad!"

    inside.prepare("1 a")
    assert inside.start() == (0, "started\n")
    names = ["changed", "directory", "file", "link", "removed", "same"]
    assert sorted(path.name for path in inside.work.iterdir()) == names
    assert (inside.work / "same").stat().st_ino == kept
    assert (inside.work / "changed").read_text() == "good"
    assert (inside.work / "removed" / "script").stat().st_mode & 0o777 == 0o755
    assert str((inside.work / "link").readlink()) == "same"
    assert list((inside.work / "directory").iterdir()) == []
    assert not (inside.work / "directory").is_symlink()
    assert (inside.work / "file").read_text() == "x"
    assert sorted(path.name for path in inside.home.iterdir()) == [".config", "locked"]
    assert outside.read_text() == "not theirs"


def test_going_back_is_done_once_and_again_if_it_was_cut_off(inside: Inside) -> None:
    (inside.work / "notes").write_text("good")
    assert inside.take("a") == (0, "")
    inside.prepare("1 a")
    inside.start()
    (inside.work / "notes").write_text("own")
    assert inside.start() == (0, "started\n")
    assert (inside.work / "notes").read_text() == "own"
    (inside.private / "checkpoints" / "restored").unlink()
    inside.start()
    assert (inside.work / "notes").read_text() == "good"
    (inside.work / "notes").write_text("own")
    inside.prepare("2 a")
    inside.start()
    assert (inside.work / "notes").read_text() == "good"


def test_a_start_without_its_checkpoint_fails_and_says_so(inside: Inside) -> None:
    inside.prepare("1 gone")
    code, said = inside.start()
    assert code != 0
    assert "The checkpoint to which the sandbox is to go back is gone" in said
    assert "started" not in said


def test_few_are_kept_and_what_has_not_changed_is_shared(inside: Inside) -> None:
    (inside.work / "large").write_bytes(os.urandom(2**20))
    (inside.work / "deep").mkdir()
    for number in range(4):
        (inside.work / "deep" / "small").write_text(f"{number}")
        assert inside.take(f"c{number}", keep=2) == (0, "")
    store = inside.private / "checkpoints"
    taken = sorted(path for path in store.iterdir() if "-" in path.name)
    assert [path.name.partition("-")[2] for path in taken] == ["c2", "c3"]
    assert len({path.stat().st_ino for path in store.glob("*/*/large")}) == 1
    code, said = inside.take("c4", max_bytes=1000)
    assert code == 3
    assert "over 1000" in said
    left = [*(one.name for one in taken), "index", "lock"]
    assert sorted(path.name for path in store.iterdir()) == left


def test_two_at_once_do_not_disturb_each_other(inside: Inside) -> None:
    for number in range(3000):
        (inside.work / f"{number}").touch()
    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(inside.take, ("a", "b", "c")))
    assert ended == [(0, "")] * 3
    copies = sorted(inside.private.glob("checkpoints/*-*/*work"))
    assert [len(list(copy.iterdir())) for copy in copies] == [3000] * 3
