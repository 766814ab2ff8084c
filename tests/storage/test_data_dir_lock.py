"""The lock of a data directory: one server at a time, and no lock outlives its process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.storage.database_file import lock_data_dir


def test_a_second_server_is_refused_and_told_who_holds_the_directory(tmp_path: Path) -> None:
    with (
        lock_data_dir(tmp_path),
        pytest.raises(StartFailed) as caught,
        lock_data_dir(tmp_path),
    ):
        pass

    assert str(tmp_path) in caught.value.message
    assert f"process {os.getpid()}" in caught.value.message
    assert "--data-dir" in caught.value.hint


def test_a_refused_server_takes_nothing_from_the_one_that_holds_it(tmp_path: Path) -> None:
    with lock_data_dir(tmp_path):
        for _ in range(2):
            with pytest.raises(StartFailed), lock_data_dir(tmp_path):
                pass


def test_the_lock_can_be_taken_again_once_it_was_given_back(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_data_dir(tmp_path):
            pass
    assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o600


def test_the_lock_ends_with_a_killed_process_though_its_child_lives(tmp_path: Path) -> None:
    code = (
        "import pathlib, subprocess, sys, time\n"
        "from agentsvc.storage.database_file import lock_data_dir\n"
        "with lock_data_dir(pathlib.Path(sys.argv[1])):\n"
        "    child = subprocess.Popen(['sleep', '8'], stdout=subprocess.DEVNULL)\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(8)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        with pytest.raises(StartFailed, match=f"process {holder.pid}"), lock_data_dir(tmp_path):
            pass
        holder.kill()
    try:
        with lock_data_dir(tmp_path):
            pass
    finally:
        os.kill(child, 9)


def test_a_lock_file_without_a_number_still_locks(tmp_path: Path) -> None:
    with lock_data_dir(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(StartFailed, match="process unknown"), lock_data_dir(tmp_path):
            pass


def test_a_directory_that_does_not_exist_stops_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(StartFailed, match=r"cannot be used \(No such file or directory\)"),
        lock_data_dir(tmp_path / "absent"),
    ):
        pass
