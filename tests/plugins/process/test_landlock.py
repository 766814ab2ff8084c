"""Landlock as an ordinary user: what a confined program reaches, seen from inside."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process import landlock

UID = 28657
TOP = Path(__file__).parents[3]
PROBE = """
import json, os, signal, socket, sys
own, server, other, parent, name = sys.argv[1:]
said = {}

def attempt(title, act):
    try:
        act()
        said[title] = True
    except OSError as exc:
        said[title] = False

attempt("write own", lambda: open(own + "/new", "w").write("x"))
attempt("rename own", lambda: (os.mkdir(own + "/deep"), os.rename(own + "/new", own + "/deep/new")))
attempt("read system", lambda: open("/etc/passwd").read())
attempt("null", lambda: open("/dev/null", "w").write("x"))
attempt("read server", lambda: open(server).read())
attempt("list server", lambda: os.listdir(os.path.dirname(server)))
attempt("cut server", lambda: os.truncate(server, 0))
attempt("remove server", lambda: os.unlink(server))
attempt("write beside", lambda: open(other + "/new", "w"))
attempt("link in", lambda: os.link(server, own + "/link"))
attempt("write system", lambda: open("/etc/agentsvc-trial", "w"))
attempt("environment of the parent", lambda: open("/proc/" + parent + "/environ").read())
attempt("memory of the parent", lambda: open("/proc/" + parent + "/mem", "rb"))
attempt("signal the parent", lambda: os.kill(int(parent), 0))
attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + name))
attempt("own child", lambda: os.waitpid(os.spawnv(os.P_NOWAIT, "/bin/true", ["true"]), 0))
print(json.dumps(said))
"""


@pytest.fixture
def grounds(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """Make what is the sandbox's and what is the server's, all of one user."""
    if os.geteuid() == 0:
        top = Path("/var/tmp") / f"agentsvc-{os.getpid()}-{tmp_path.name[-8:]}"  # noqa: S108  # removed below
    else:
        top = tmp_path / "top"
    top.mkdir()
    top.chmod(0o755)
    made = {name: top / name for name in ("own", "other", "data")}
    for directory in made.values():
        directory.mkdir()
        if os.geteuid() == 0:
            os.chown(directory, UID, UID)
    secret = made["data"] / "agentsvc.db"
    secret.write_text("secret")
    if os.geteuid() == 0:
        os.chown(secret, UID, UID)
    yield {**made, "secret": secret}
    shutil.rmtree(top)


def as_ordinary_user(argv: list[str]) -> subprocess.CompletedProcess[str]:
    prefix = []
    if os.geteuid() == 0:
        ids = ["--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
        # The right to pass through directories of root's, where this Python may be.
        caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
        prefix = ["setpriv", *ids, *caps]
    return subprocess.run(
        [*prefix, *argv], capture_output=True, text=True, check=False, timeout=50, cwd=TOP
    )


@pytest.mark.skipif(landlock.abi() < landlock.ABI_MIN, reason="this kernel has no Landlock")
def test_a_confined_program_reaches_its_own_files_and_nothing_of_the_server(
    grounds: dict[str, Path],
) -> None:
    script = f"""
import os, socket, subprocess, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0agentsvc-{os.getpid()}")
listener.listen()
sys.exit(subprocess.run(sys.argv[1:] + [str(os.getpid()), "agentsvc-{os.getpid()}"]).returncode)
"""
    probe = [sys.executable, "-I", "-S", "-c", PROBE]
    where = [str(grounds["own"]), str(grounds["secret"]), str(grounds["other"])]
    rules = landlock.rules([sys.base_prefix], [str(grounds["own"])])
    confined = landlock.wrapped(rules, [*probe, *where])
    starter = [sys.executable, "-I", "-S", "-c", script]
    said = as_ordinary_user([*starter, *confined])
    assert said.returncode == 0, said.stderr
    reached = {title for title, works in json.loads(said.stdout).items() if works}
    allowed = {"write own", "rename own", "read system", "null", "own child"}
    if landlock.abi() < 6:
        allowed |= {"signal the parent", "abstract socket"}
    assert reached == allowed
    assert grounds["secret"].read_text() == "secret"
    # The same program without rules reaches the server's files: they are its own user's.
    free = json.loads(as_ordinary_user([*starter, *probe, *where]).stdout)
    assert free["signal the parent"]
    assert free["abstract socket"]
    assert free["cut server"]


@pytest.mark.skipif(landlock.abi() < landlock.ABI_MIN, reason="this kernel has no Landlock")
def test_a_command_that_is_not_there_ends_as_a_shell_would_say(tmp_path: Path) -> None:
    rules = landlock.rules([sys.base_prefix], [str(tmp_path)])
    said = as_ordinary_user(landlock.wrapped(rules, ["agentsvc-no-such-program"]))
    assert said.returncode == 127
    assert "cannot run agentsvc-no-such-program" in said.stderr


@pytest.mark.skipif(landlock.abi() < landlock.ABI_MIN, reason="this kernel has no Landlock")
def test_a_sandbox_without_bubblewrap_reaches_its_own_files_alone(
    grounds: dict[str, Path],
) -> None:
    said = as_ordinary_user(
        [sys.executable, "-B", "-m", "tests.plugins.process.landlocked", str(grounds["data"])]
    )
    assert said.returncode == 0, said.stderr
    seen = json.loads(said.stdout)
    assert seen["uid"] != 0
    assert (seen["isolation"], seen["said"]) == ("landlock", "landlock")
    allowed = ["own file", "temporary file", "this package", "git"]
    if landlock.abi() < 6:
        allowed.append("signal to the server")
    assert seen["reached"] == allowed
    # It finds the socket on which another sandbox takes commands, and is not heard there.
    assert (seen["asked"][0] >= 2, seen["asked"][1]) == (True, "")
    assert seen["taken"] == []
    # The command's own loader says it, and not that of the program which confines it.
    assert (seen["preloading"], seen["own variable"]) == (1, True)


@pytest.mark.parametrize(
    ("version", "words"),
    [(0, "too old"), (3, "files"), (5, "devices"), (7, "signals, abstract sockets")],
)
def test_what_a_version_confines_is_said(version: int, words: str) -> None:
    assert landlock.describe(version).endswith(words)
