"""Commands that go on in a sandbox while nobody waits: begun whole, or not at all."""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shlex import quote

import pytest

from agentsvc.base.values import new_id
from agentsvc.extension.commands import LOOK, STOP

FULL = 'mount -t tmpfs -o size=8k tmpfs "$HOME" && sh -c "$1"'


def run(home: Path, script: str, shell: str = "sh") -> str:
    """Run a script as agent servers do, and return what it writes."""
    env = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    ended = subprocess.run(
        [shell, "-c", script], env=env, capture_output=True, text=True, timeout=50, check=False
    )
    return ended.stdout


def test_a_command_whose_number_another_process_has_is_lost(tmp_path: Path) -> None:
    run_id = new_id()
    folder = tmp_path / f".agentsvc-run-{run_id}"
    folder.mkdir()
    (folder / "output").write_text("half")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        (folder / "pid").write_text(str(other.pid))
        said = run(tmp_path, LOOK.format(id=run_id, command="true", place="/", shown=100))
        run(tmp_path, STOP.format(id=run_id))
        is_stopped = other.poll() is not None
        other.kill()
    assert said == "lost\nhalf"
    assert not is_stopped


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_a_command_is_stopped_with_what_it_has_begun(tmp_path: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    run_id, command = new_id(), quote("echo begun; sleep 20; echo ended")
    begin = LOOK.format(id=run_id, command=command, place="/", shown=100)
    with ThreadPoolExecutor(1) as others:
        said = others.submit(run, tmp_path, begin, shell)
        output = tmp_path / f".agentsvc-run-{run_id}" / "output"
        while not output.exists() or not output.read_text():
            time.sleep(0.05)
        run(tmp_path, STOP.format(id=run_id), shell)
        assert said.result() == "lost\nbegun\n"


def test_a_command_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    home, place = tmp_path / "home", tmp_path / "place"
    home.mkdir()
    place.mkdir()
    command = quote("touch begun\n" + "# and more\n" * 2000)
    script = LOOK.format(id=new_id(), command=command, place=quote(str(place)), shown=100)
    ended = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", FULL, "sh", script],
        env={"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.stdout == "lost\n"
    assert list(place.iterdir()) == []
