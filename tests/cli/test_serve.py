"""`agentsvc serve` as its operator meets it: a process, its two output streams, its exit code."""

import contextlib
import json
import os
import pty
import re
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from process import landlock

from agentsvc.base.errors import StartFailed
from agentsvc.base.values import new_id
from agentsvc.cli.serve import read_bootstrap_key
from tests.users import ordinary_user

BOOTSTRAP_KEY = "bootstrap-key-of-forty-characters-or-so"


class Server:
    """A server process that has said it is ready, and what it had said before."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stdout is not None
        for line in process.stdout:
            self.said += line
            if found := re.search(r"is ready: (\S+)", line):
                self.url = found[1]
                return
        raise AssertionError(f"no server: {self.said}{self.process.communicate()[1]}")

    @property
    def first_key(self) -> str | None:
        found = re.search(r"^    (asvc_\S+)$", self.kept, re.MULTILINE)
        return found[1] if found else None

    @property
    def kept(self) -> str:
        """What is in the file that was named in place of the key."""
        found = re.search(r"^    (/\S+/first-key)$", self.said, re.MULTILINE)
        return Path(found[1]).read_text() if found else ""

    def status_for(self, key: str | None) -> int:
        headers = {"X-Session-API-Key": key} if key else {}
        request = urllib.request.Request(
            f"{self.url}/api/v1/app-conversations/search", headers=headers
        )
        try:
            with urllib.request.urlopen(request) as response:
                return int(response.status)
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait()


type Start = Callable[..., Server]


def command_for(data_dir: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "agentsvc", "serve", "--data-dir", str(data_dir), *options]


def environment(home: Path, **variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AGENTSVC_")}
    return {**kept, "HOME": str(home), "XDG_CONFIG_HOME": str(home), **variables}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def start_server(*options: str, launcher: Sequence[str] = (), **variables: str) -> Server:
        options = options if "--port" in options else (*options, "--port", "0")
        process = subprocess.Popen(
            [*launcher, *command_for(tmp_path / "data", *options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(tmp_path, **variables),
        )
        running.append(process)
        return Server(process)

    yield start_server
    for process in running:
        process.kill()
        process.communicate()


def refused(
    tmp_path: Path, *options: str, launcher: Sequence[str] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*launcher, *command_for(tmp_path / "data", *options)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path, **variables),
    )


def test_the_first_start_keeps_a_key_that_opens_the_server_and_prints_where_everything_is(
    start: Start, tmp_path: Path
) -> None:
    server = start()
    data_dir = tmp_path / "data"
    assert server.first_key
    assert server.status_for(server.first_key) == 200
    assert server.status_for(None) == 401
    assert server.status_for("asvc_" + "x" * 43) == 401
    assert f"database    {data_dir / 'agentsvc.db'}\n" in server.said
    assert f"master key  {data_dir / 'master.key'} " in server.said
    assert "logs        standard error\n" in server.said
    assert "config      defaults, no file was read\n" in server.said


@pytest.mark.skipif(os.geteuid() != 0, reason="this is not root")
@pytest.mark.parametrize("configured", ["default", "none", "landlock"])
def test_root_starts_nothing_without_bubblewrap_whatever_is_configured(
    tmp_path: Path, configured: str
) -> None:
    ended = refused(
        tmp_path, "--port", "0", AGENTSVC_SANDBOXES__ISOLATION=configured, PATH=str(tmp_path)
    )
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        "error: sandboxes of the backend `process` would have isolation `none` instead of"
        " `bubblewrap`: bubblewrap is not installed\n"
        "hint: apt install bubblewrap, or run the server as an ordinary user\n"
    )
    assert ended.stdout == ""


def test_a_user_without_bubblewrap_is_told_which_line_accepts_it(tmp_path: Path) -> None:
    level = "landlock" if landlock.abi() >= landlock.ABI_MIN else "none"
    ended = refused(tmp_path, "--port", "0", launcher=ordinary_user(tmp_path), PATH=str(tmp_path))
    assert ended.returncode == 1
    assert (
        f"error: sandboxes of the backend `process` would have isolation `{level}` instead of"
        " `bubblewrap`: bubblewrap is not installed\n"
        "hint: apt install bubblewrap; to accept it without, configure:"
        f' sandboxes.isolation = "{level}"\n'
    ) in ended.stderr
    assert ended.stdout == ""


def test_a_server_that_is_ready_says_how_sandboxes_are_held(start: Start, tmp_path: Path) -> None:
    assert re.search(
        r"is ready: \S+ \(isolation: bubblewrap; limits: .*open_files.*\)", start().said
    )
    user = ordinary_user(tmp_path)
    level = "landlock" if landlock.abi() >= landlock.ABI_MIN else "none"
    lesser = start(
        "--data-dir", str(tmp_path / "other"), launcher=user, PATH=str(tmp_path),
        AGENTSVC_SANDBOXES__ISOLATION="none",
    )  # fmt: skip
    assert f"(isolation: {level}, BELOW the default `bubblewrap`; limits: " in lesser.said
    assert "NOT limited: memory_bytes, pids)" in lesser.said


def test_no_output_of_a_server_without_a_terminal_has_a_key_or_a_link(
    start: Start, tmp_path: Path
) -> None:
    # What stands in its place is replaced and not followed, and never readable by others.
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "first-key").symlink_to(tmp_path / "elsewhere")
    server = start()
    key = server.first_key
    assert key is not None
    assert server.stop() == 0
    said = server.said + "".join(server.process.communicate())
    assert "asvc_" not in said
    assert "token=" not in said
    file = tmp_path / "data" / "first-key"
    assert stat.S_IMODE(file.lstat().st_mode) == 0o600
    assert stat.S_ISREG(file.lstat().st_mode)
    assert not (tmp_path / "elsewhere").exists()
    second = start()
    second.stop()
    assert f"the first key is still in {file}; delete it" in second.process.communicate()[1]


def test_a_first_key_that_cannot_be_kept_is_not_made(start: Start, tmp_path: Path) -> None:
    in_the_way = tmp_path / "data" / "first-key"
    in_the_way.mkdir(mode=0o700, parents=True)
    result = refused(tmp_path, "--port", "0")
    assert (result.returncode, "the first key cannot be stored" in result.stderr) == (1, True)
    in_the_way.rmdir()
    server = start()
    assert server.status_for(server.first_key) == 200


def test_a_terminal_shows_the_key_and_the_link_of_the_first_start_and_no_file_has_them(
    tmp_path: Path,
) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen(
        command_for(tmp_path / "data", "--port", "0"),
        stdin=its,
        stdout=its,
        stderr=its,
        env=environment(tmp_path),
    )
    os.close(its)
    try:
        shown = b""
        while b"is ready: " not in shown:
            shown += os.read(ours, 4096)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert re.search(rb"^    asvc_\S+\r$", shown, re.MULTILINE)
    assert re.search(rb"^    http\S+/login\?token=\S+\r$", shown, re.MULTILINE)
    assert not (tmp_path / "data" / "first-key").exists()


def test_the_first_start_keeps_a_link_that_logs_a_browser_in_once(start: Start) -> None:
    server = start()
    found = re.search(r"^    (http\S+/login)\?token=(\S+)$", server.kept, re.MULTILINE)
    assert found is not None
    assert found[1] == f"{server.url}/login"
    body = json.dumps({"token": found[2]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server.url}/api/v1/logins", data=body, headers=headers)
    with urllib.request.urlopen(request) as response:
        cookie = response.headers["Set-Cookie"].partition(";")[0]
        page_token = json.load(response)["page_token"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)
    parts = {"Cookie": cookie, "X-Agentsvc-Login": page_token}
    asked = urllib.request.Request(f"{server.url}/api/v1/users/me", headers=parts)
    with urllib.request.urlopen(asked) as response:
        assert response.status == 200
    server.stop()
    assert found[2] not in server.process.communicate()[1]


def test_what_the_server_keeps_is_for_its_owner_only(start: Start, tmp_path: Path) -> None:
    start()
    modes = {
        path.name: path.stat().st_mode & 0o777
        for path in [tmp_path / "data", *(tmp_path / "data").iterdir()]
    }
    assert modes["data"] == 0o700
    assert modes["agentsvc.db"] == modes["master.key"] == 0o600
    assert not [name for name, mode in modes.items() if mode & 0o022]


def test_a_later_start_makes_no_key_and_the_first_one_still_works(start: Start) -> None:
    first = start()
    assert first.stop() == 0
    second = start()
    assert second.kept == ""
    assert second.status_for(first.first_key) == 200


def test_the_bootstrap_key_is_the_first_key_and_is_not_printed(
    start: Start, tmp_path: Path
) -> None:
    server = start(AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY)
    assert server.status_for(BOOTSTRAP_KEY) == 200
    assert server.kept == ""
    assert not (tmp_path / "data" / "first-key").exists()
    assert server.stop() == 0
    assert BOOTSTRAP_KEY not in server.said + server.process.communicate()[1]


def test_a_bootstrap_key_that_comes_too_late_is_noted(start: Start) -> None:
    first = start()
    first.stop()
    second = start(AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY)
    assert second.status_for(BOOTSTRAP_KEY) == 401
    assert second.status_for(first.first_key) == 200
    second.stop()
    assert "note: the bootstrap key is ignored" in second.process.communicate()[1]


def test_the_bootstrap_key_of_the_first_start_is_not_noted_at_the_second(start: Start) -> None:
    start(AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY).stop()
    second = start(AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY)
    second.stop()
    assert "note:" not in second.process.communicate()[1]


def test_a_file_has_the_bootstrap_key(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap-key"
    file.write_text(f"{BOOTSTRAP_KEY}\n")
    server = start(AGENTSVC_BOOTSTRAP_KEY_FILE=str(file))
    assert server.status_for(BOOTSTRAP_KEY) == 200


def test_a_bootstrap_key_in_a_file_that_is_none_stops_the_start(tmp_path: Path) -> None:
    for environ, match in (
        ({"AGENTSVC_BOOTSTRAP_KEY_FILE": str(tmp_path / "none")}, "No such file"),
        ({"AGENTSVC_BOOTSTRAP_KEY_FILE": str(tmp_path)}, "Is a directory"),
        ({"AGENTSVC_BOOTSTRAP_KEY_FILE": os.devnull}, "KEY_FILE must have at least 32"),
        (
            {"AGENTSVC_BOOTSTRAP_KEY_FILE": "x", "AGENTSVC_BOOTSTRAP_KEY": BOOTSTRAP_KEY},
            "both set",
        ),
    ):
        with pytest.raises(StartFailed, match=match):
            read_bootstrap_key(environ)


def test_secrets_of_the_environment_are_in_that_of_no_process(start: Start, tmp_path: Path) -> None:
    """What a process was started with stays in /proc, whatever it does to its variables later."""
    remote = "the-key-of-another-server-of-many-characters"
    server = start(
        AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY,
        AGENTSVC_API_KEY="asvc_of-a-client-of-another-server",
        AGENTSVC_BACKENDS__FAR__API_KEY=remote,
        AGENTSVC_BACKENDS__FAR__TYPE="remote",
        AGENTSVC_BACKENDS__FAR__URL="http://127.0.0.1:9",
        AGENTSVC_SPECS__ONE__ENV='{"SOME_API_KEY": "of-a-table-in-json"}',
        AGENTSVC_SPECS__TWO__ENV="PLAIN=1,OTHER_TOKEN=of-a-table-in-pairs",
        AGENTSVC_LOG__LEVEL="debug",
    )
    assert server.status_for(BOOTSTRAP_KEY) == 200
    family = family_of(server.process.pid)
    assert server.process.pid in family
    for pid in family:
        seen = text_of(Path(f"/proc/{pid}/environ")) + text_of(Path(f"/proc/{pid}/cmdline"))
        for secret in (BOOTSTRAP_KEY, "asvc_of-a-client", remote, "of-a-table"):
            assert secret.encode() not in seen, pid
    own = Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert b"AGENTSVC_LOG__LEVEL=debug" in own
    files = [os.readlink(one) for one in Path(f"/proc/{server.process.pid}/fd").iterdir()]  # noqa: PTH115  # it is no path
    assert not [name for name in files if "memfd:agentsvc" in name]


def family_of(pid: int) -> list[int]:
    """Return a process and all that descend from it."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    below = [int(child) for file in children for child in text_of(file).split()]
    return [pid, *(one for child in below for one in family_of(child))]


def text_of(file: Path) -> bytes:
    """Return what /proc has in a file, or nothing once its process has ended."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("environ", [{}, {"AGENTSVC_BOOTSTRAP_KEY": ""}])
def test_an_empty_bootstrap_key_is_none(environ: dict[str, str]) -> None:
    assert read_bootstrap_key(environ) is None


@pytest.mark.parametrize("weak", ["short", "x" * 31, "with blanks " * 5, "ü" * 40])
def test_a_weak_bootstrap_key_stops_the_start(tmp_path: Path, weak: str) -> None:
    with pytest.raises(StartFailed, match="AGENTSVC_BOOTSTRAP_KEY must have at least 32"):
        read_bootstrap_key({"AGENTSVC_BOOTSTRAP_KEY": weak})


def test_a_start_that_is_refused_makes_nothing(tmp_path: Path) -> None:
    result = refused(tmp_path, AGENTSVC_BOOTSTRAP_KEY="short")
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == (
        "error: AGENTSVC_BOOTSTRAP_KEY must have at least 32 characters,"
        " all of them ASCII letters, digits or signs\n"
        "hint: create one with: openssl rand -hex 32\n"
    )
    assert not (tmp_path / "data").exists()


def test_a_port_that_is_taken_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        result = refused(tmp_path, "--port", str(port))
    assert result.returncode == 1
    assert result.stdout == ""
    # Before it there may be a warning of the Python that runs this.
    assert result.stderr.endswith(
        f"error: port {port} on 127.0.0.1 is already in use\n"
        f"hint: stop the program there, or choose another port: --port {port % 65535 + 1}\n"
    )
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
@pytest.mark.parametrize("kib", [0, 12, 40, 700])
def test_a_full_disk_is_one_line_with_the_remedy(tmp_path: Path, kib: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], check=True)
    try:
        (disk / "fill").write_bytes(bytes((4096 - kib) * 1024))
        found = refused(disk, "--port", "0")
    finally:
        subprocess.run(["umount", disk], check=True)
    *_, error, hint = found.stderr.splitlines()
    assert (found.returncode, error[:7]) == (1, "error: ")
    assert "Traceback" not in found.stderr
    assert "room" in hint or "space" in hint


def test_a_data_directory_in_use_is_refused(start: Start, tmp_path: Path) -> None:
    server = start()
    result = refused(tmp_path, "--port", "0")
    assert result.returncode == 1
    assert f"process {server.process.pid}" in result.stderr
    assert "hint: " in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_with_exit_code_0(start: Start, number: int) -> None:
    server = start()
    assert server.stop(number) == 0
    assert server.process.communicate()[1].endswith("agentsvc has stopped\n")


def test_a_second_signal_ends_the_server_at_once(start: Start) -> None:
    server = start(AGENTSVC_BOOTSTRAP_KEY=BOOTSTRAP_KEY)
    host, _, port = server.url.removeprefix("http://").partition(":")
    head = f"POST /api/settings HTTP/1.1\r\nHost: x\r\nX-Session-API-Key: {BOOTSTRAP_KEY}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((host, int(port))) as unfinished:
        unfinished.sendall(head.encode())
        server.status_for(BOOTSTRAP_KEY)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(1)
        assert server.stop() == 128 + signal.SIGTERM


def _is_open(host: str, port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex((host, port)) == 0


def test_a_server_that_stops_names_no_port_that_others_can_take(
    start: Start, tmp_path: Path
) -> None:
    server, url = start(), tmp_path / "data" / "url"
    assert url.read_text() == f"{server.url}\n"
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as unfinished:
        unfinished.sendall(
            b"POST /login HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
            b"Content-Type: application/x-www-form-urlencoded\r\n\r\nkey="
        )
        server.status_for(None)
        server.process.send_signal(signal.SIGTERM)
        while _is_open(host, int(port)):
            pass
        assert (server.process.poll(), url.exists()) == (None, False)


def test_a_killed_server_starts_again(start: Start) -> None:
    first = start()
    first.stop(signal.SIGKILL)
    assert start().status_for(first.first_key) == 200


def test_the_same_port_can_be_used_again_at_once(start: Start) -> None:
    first = start()
    first.status_for(first.first_key)
    first.stop()
    port = first.url.rpartition(":")[2]
    assert start("--port", port).url == first.url


def test_the_configuration_comes_from_file_environment_and_command_line(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "my.toml"
    file.write_text('[log]\nformat = "json"\n[server]\nhost = "127.0.0.9"\n')
    server = start("--config", str(file), "--host", "127.0.0.2", AGENTSVC_LOG__LEVEL="debug")
    assert server.url.startswith("http://127.0.0.2:")
    assert f"config      {file}\n" in server.said
    server.stop()
    logged = server.process.communicate()[1].splitlines()
    assert [json.loads(line)["level"] for line in logged if line.startswith("{")]


def test_keys_can_be_made_and_revoked_while_the_server_runs(start: Start, tmp_path: Path) -> None:
    server = start()

    def keys(*arguments: str) -> str:
        command = [sys.executable, "-m", "agentsvc", "keys", *arguments]
        command += ["--data-dir", str(tmp_path / "data")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    key = keys("create", "--user", "ann", "--output", "-").strip()
    assert server.status_for(key) == 200
    keys("revoke", "2")
    assert server.status_for(key) == 401
    assert server.status_for(server.first_key) == 200


# The address


class Listener:
    """What systemd is to a server: a socket that is told things."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # An abstract name: one in a directory may be too long.
        self.name = f"agentsvc-test-{new_id()}"
        self._socket.bind(f"\0{self.name}")
        self._socket.settimeout(30)

    def read_until(self, text: str) -> str:
        while text not in (told := self._socket.recv(4096).decode()):
            pass
        return told

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd() -> Iterator[Listener]:
    listener = Listener()
    yield listener
    listener.close()


def test_systemd_hears_when_the_server_is_ready_alive_and_stopping(
    start: Start, systemd: Listener
) -> None:
    server = start(NOTIFY_SOCKET=f"@{systemd.name}", WATCHDOG_USEC="200000")
    assert f"STATUS=listening at {server.url}" in systemd.read_until("READY=1")
    systemd.read_until("WATCHDOG=1")
    systemd.read_until("WATCHDOG=1")
    assert server.stop() == 0
    systemd.read_until("STOPPING=1")


def test_sighup_reads_the_configuration_again(
    start: Start, systemd: Listener, tmp_path: Path
) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[log]\nlevel = "info"\n')
    server = start("--config", str(file), NOTIFY_SOCKET=f"@{systemd.name}")
    systemd.read_until("READY=1")
    for text in (
        '[log]\nlevel = "debug"\n[events]\nheartbeat_seconds = 5.0\n',
        '[log]\nlevel = "loud"\n',
        "[log]\nlevel =\n",
    ):
        file.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in systemd.read_until("RELOADING=1")
        systemd.read_until("READY=1")
    assert server.status_for(server.first_key) == 200
    assert server.stop() == 0
    log = server.process.communicate()[1]
    assert "configuration reloaded" in log
    assert re.search("settings changed that need a restart.*events.heartbeat_seconds", log)
    assert re.search("configuration not reloaded.*log.level", log)
    assert re.search("configuration not reloaded.*at line 2, column 8", log)


def test_clients_cannot_take_all_files_that_the_server_may_open(start: Start) -> None:
    server = start(launcher=("sh", "-c", 'ulimit -n 200; exec "$@"', "sh"))
    host, _, port = server.url.removeprefix("http://").partition(":")
    with contextlib.ExitStack() as held:
        for _ in range(250):
            held.enter_context(socket.create_connection((host, int(port))))
        assert server.status_for(server.first_key) == 200
    assert server.stop() == 0
    assert "connections=50 open_files=200" in server.process.communicate()[1]
