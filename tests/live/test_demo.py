"""`agentsvc demo` as a person meets it: a process that shows an agent and leaves nothing behind."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from process import landlock

from tests.users import ordinary_user

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


class Demo:
    """A demo that runs, with all it makes in one directory."""

    def __init__(
        self, directory: Path, *options: str, launcher: Sequence[str] = (), **environment: str
    ) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [*launcher, sys.executable, "-m", "agentsvc", "demo", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(directory), **environment},
        )
        self.shown = ""

    def read_until(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.shown += line
            if text in line:
                return
        raise AssertionError(f"no `{text}` in: {self.shown}{self.process.communicate()[1]}")

    def end(self, number: int = 0) -> int:
        """Send a signal, if one is given, and return the exit code."""
        if number:
            self.process.send_signal(number)
        self.shown += self.process.communicate(timeout=110)[0]
        return self.process.returncode

    def leftovers(self) -> list[str]:
        """Return the files it left, and the processes that still know of its directory."""
        left = [str(path) for path in self.directory.iterdir() if "agentsvc" in path.name]
        for process in Path("/proc").iterdir():
            if process.name.isdecimal() and int(process.name) != os.getpid():
                left += [process.name] if self._is_ours(process) else []
        return left

    def _is_ours(self, process: Path) -> bool:
        try:
            told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            return False
        return str(self.directory).encode() in told


@pytest.fixture
def demos(tmp_path: Path) -> Iterator[list[Demo]]:
    running: list[Demo] = []
    yield running
    for demo in running:
        if demo.process.poll() is None:
            demo.process.terminate()
        demo.process.communicate()


def start(demos: list[Demo], directory: Path, *options: str) -> Demo:
    demos.append(Demo(directory, *options))
    return demos[-1]


def test_the_demo_shows_an_agent_at_work_and_leaves_nothing(
    demos: list[Demo], tmp_path: Path
) -> None:
    demo = start(demos, tmp_path)
    assert demo.end() == 0
    for text in (
        "waiting for sandbox",
        "starting conversation",
        "$ python3 hello.py",
        "is finished",
    ):
        assert text in demo.shown
    assert re.search(r"\| Hello from Linux", demo.shown)
    assert '\n  | print("Hello, world!")\n' in demo.shown
    assert re.search(r"total +\d+\.\d\d s\n$", demo.shown)
    assert "\x1b" not in demo.shown
    assert demo.leftovers() == []


def without_bubblewrap() -> list[str]:
    """Return what a command is begun with that is not to find bubblewrap; only root can hide it."""
    program = shutil.which("bwrap")
    if program is None:
        return []
    hide = f'mount --bind /dev/null {program} && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", hide, "sh"]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="this is not root")


@needs_root
def test_a_demo_of_root_without_bubblewrap_says_what_to_install(tmp_path: Path) -> None:
    demo = Demo(tmp_path, launcher=without_bubblewrap())
    stderr = demo.process.communicate()[1]
    assert demo.process.returncode == 1
    assert stderr == (
        "error: sandboxes cannot be isolated: bubblewrap is not installed, and root has no other"
        " isolation\nhint: apt install bubblewrap, or run the server as an ordinary user\n"
    )
    assert demo.leftovers() == []


@needs_root
@pytest.mark.skipif(landlock.abi() < landlock.ABI_MIN, reason="this kernel has no Landlock")
def test_a_demo_of_a_user_without_bubblewrap_says_loudly_that_landlock_alone_confines_it() -> None:
    # What pytest makes is below a directory that is for root only.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        launcher = [*without_bubblewrap(), *ordinary_user(place)]
        demo = Demo(place, launcher=launcher, HOME=name)
        shown, stderr = demo.process.communicate(timeout=200)
        assert demo.process.returncode == 0, stderr
        assert "isolation of its sandbox: landlock" in shown
        assert "WARNING: bubblewrap is not installed. Landlock alone confines the agent" in stderr
        assert demo.leftovers() == []


def test_a_kept_demo_has_commands_that_work_when_pasted(demos: list[Demo], tmp_path: Path) -> None:
    demo = start(demos, tmp_path, "--keep")
    demo.read_until("V1: another conversation")
    demo.read_until("curl")
    lines = re.findall(r"^curl .*$", demo.shown, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        pasted = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
        answer = json.loads(pasted.stdout)
        assert "detail" not in answer or answer["detail"] is None, (line, answer)
        assert "error" not in answer, (line, answer)
    assert demo.end(signal.SIGINT) == 0
    assert demo.leftovers() == []


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "A server of its own"),
        (signal.SIGINT, "working"),
        (signal.SIGTERM, "Look around"),
    ],
)
def test_an_interrupted_demo_leaves_nothing(
    demos: list[Demo], tmp_path: Path, number: int, moment: str
) -> None:
    demo = start(demos, tmp_path)
    demo.read_until(moment)
    assert demo.end(number) == 1
    assert demo.leftovers() == []


def test_a_port_that_is_taken_is_told_and_nothing_is_left(
    demos: list[Demo], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        demo = start(demos, tmp_path, "--port", str(other.getsockname()[1]))
        stderr = demo.process.communicate()[1]
    assert demo.process.returncode == 1
    assert "is already in use" in stderr
    assert demo.leftovers() == []
