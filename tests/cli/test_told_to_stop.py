"""Commands that are told to stop in the middle leave nothing that is half done."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agentsvc.base.values import monotonic
from tests.new_data import lay_database


def test_a_command_that_is_told_to_stop_leaves_no_copy(tmp_path: Path) -> None:
    pipe, there = tmp_path / "pipe", tmp_path / "there"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "agentsvc", "restore", str(pipe), "--data-dir", str(there)]
    with subprocess.Popen(command, env={"HOME": str(tmp_path)}) as restoring:
        deadline = monotonic() + 30
        while not list(there.glob("restore-*/archives")) and monotonic() < deadline:
            time.sleep(0.02)
        [scratch] = there.glob("restore-*/archives")
        for number in range(5000):
            (scratch / f"{number}").touch()
        restoring.terminate()
        while len(list(scratch.glob("*"))) == 5000 and monotonic() < deadline:
            time.sleep(0.001)
        # A shell tells its jobs, too, that the terminal is closed: it comes twice.
        restoring.terminate()
        assert restoring.wait(30) == -signal.SIGTERM
    assert not there.exists()


def test_a_backup_that_is_told_to_stop_leaves_no_draft(tmp_path: Path) -> None:
    data, there = tmp_path / "data", tmp_path / "there"
    lay_database(data)
    there.mkdir()
    (data / "instance-id").write_text("a" * 32)
    (data / "archives").mkdir()
    with (data / "archives" / f"{'a' * 32}.tar.zst").open("wb") as long:
        long.truncate(64 * 1024**3)
    options = ["--archives", "--without-key", "--data-dir", str(data)]
    command = [sys.executable, "-m", "agentsvc", "backup", str(there / "file"), *options]
    with subprocess.Popen(command, env={"HOME": str(tmp_path)}) as running:
        deadline = monotonic() + 30
        while monotonic() < deadline and not [
            one for one in there.rglob("*") if one.is_file() and one.stem != "agentsvc"
        ]:
            time.sleep(0.02)
        running.terminate()
        assert running.wait(30) == -signal.SIGTERM
    assert list(there.iterdir()) == []
