"""A Docker engine of the tests' own: started by whoever needs it first, gone with its last user.

Standard library only, so that CI begins with it before anything is installed:

    python3 tests/live/engines.py hold DIRECTORY [--base NAME]

keeps one in a directory as long as its parent lives, and makes a base image where none can be
pulled. Users hold a shared lock on a file in that directory; the keeper, a process of its own,
waits for a lock that excludes them all, which it gets however they end, and then removes the
engine, its containers, its networks, its firewall rules and its files.
"""

import argparse
import contextlib
import ctypes
import fcntl
import http.client
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

START_SECONDS: Final = 90.0
STOP_SECONDS: Final = 60.0
BASE: Final = "python:3.13-slim"

_CLONE_NEWNET: Final = 0x40000000
_FIREWALL: Final = (("iptables", "filter"), ("iptables", "nat"))
_LINKS: Final = ("docker0", "br-")
_PARTS: Final = (
    *("containerd", "docker", "runc", "runsc"),
    *("aardvark-dns", "conmon", "crun", "netavark", "podman"),
)
_SHOWS_ALL: Final = "/proc/sys/net/core/rmem_default"


class EngineFailed(Exception):
    """There is no engine, and the text says why."""


class Lease:
    """A share in the engine of a directory; it starts the engine where there is none."""

    def __init__(
        self, directory: Path, *, arguments: Iterable[str] = (), alone: bool = False
    ) -> None:
        """Choose the engine; `alone` gives it a network of its own, without a way out."""
        self.directory = directory
        self._arguments = tuple(arguments)
        self._alone = alone
        self._lock: IO[str] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def socket(self) -> Path:
        return self.directory / "docker.sock"

    def __enter__(self) -> Self:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = self.directory.with_suffix(".users").open("a")
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        try:
            with one_at_a_time(self.directory, "start"):
                if not answers(self.socket):
                    self._start()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the share back; the engine goes with the last one."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def keeper(self) -> int:
        """Return the process id of the keeper, whose network is the engine's."""
        return int((self.directory / "keeper.pid").read_text())

    def restart(self, how: signal.Signals) -> None:
        """End the engine in this way and wait until its keeper has started it again."""
        pid = int((self.directory / "dockerd.pid").read_text())
        os.kill(pid, how)
        wait(lambda: not is_alive(pid), STOP_SECONDS, "the engine ends")
        wait(lambda: answers(self.socket), START_SECONDS, "the engine is back")

    def _start(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = self.directory.with_suffix(".log")
        command = self.keepers_command()
        # It outlives whoever starts it, and no `Popen` may do so without a warning.
        with log.open("ab") as output:
            files: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
            files += [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
            keeper = os.posix_spawn(
                command[0], command, os.environ, file_actions=files, setsid=True
            )
        wait(
            lambda: answers(self.socket) or not is_alive(keeper),
            START_SECONDS,
            "the engine answers",
        )
        if not is_alive(keeper):
            raise EngineFailed(f"the engine does not start: {tail(log)}")

    def keepers_command(self) -> list[str]:
        """Return what keeps the engine."""
        return [
            *(sys.executable, str(Path(__file__).resolve()), "keep", str(self.directory)),
            *(["--alone"] if self._alone else []),
            *(f"--engine={argument}" for argument in self._arguments),
        ]


class _Keeper:
    """Runs the engine of a directory until nobody holds a share in it."""

    def __init__(self, directory: Path, arguments: list[str], *, alone: bool) -> None:
        self.directory = directory
        self.alone = alone
        self._arguments = arguments
        self._engine: subprocess.Popen[bytes] | None = None
        self._before: dict[tuple[str, str], list[str]] = {}
        self._links: set[str] = set()

    def run(self) -> None:
        (self.directory / "keeper.pid").write_text(str(os.getpid()))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        if self.alone:
            _own_network()
        self._before = {table: rules(*table) for table in _FIREWALL}
        self._links = _links()
        try:
            self._arguments += [] if self.alone else _gvisor(self.directory)
            self._start()
            wait(self._is_up, START_SECONDS, "the engine answers")
            self._wait_for_the_last()
        finally:
            self._remove()

    def _start(self) -> None:
        place = self.directory
        # One that was killed leaves these two, and the next start waits for them.
        (place / "dockerd.pid").unlink(missing_ok=True)
        (place / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        command = [
            "dockerd",
            *("--host", f"unix://{place}/docker.sock", "--pidfile", f"{place}/dockerd.pid"),
            *("--data-root", f"{place}/root", "--exec-root", f"{place}/exec"),
            *self._arguments,
        ]
        # Its containerd leaves a copy of each checkpoint in the directory for temporary files.
        temporary = place / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = os.environ | {"TMPDIR": str(temporary)}
        self._engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment)

    def _is_up(self) -> bool:
        assert self._engine is not None
        if self._engine.poll() is not None:
            raise EngineFailed(f"dockerd ended with code {self._engine.returncode}")
        return answers(self.directory / "docker.sock")

    def _wait_for_the_last(self) -> None:
        """Remove the engine when nobody uses it any more; start it again when it was ended."""

        def look_after_it() -> None:
            if self._engine is not None and self._engine.poll() is not None:
                self._start()

        with last_user_gone(self.directory, look_after_it):
            self._remove()

    def _remove(self) -> None:
        if self._engine is None:
            return
        engine, self._engine = self._engine, None
        with contextlib.suppress(OSError, http.client.HTTPException):
            if engine.poll() is None:
                _remove_containers(self.directory / "docker.sock")
        engine.terminate()
        try:
            engine.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()
        end_processes(self.directory)
        unmount(self.directory)
        if not self.alone:
            remove_links(_links() - self._links)
            for table, before in self._before.items():
                # Podman's are for its own keeper to remove.
                remove_rules(*table, before, of_podman=False)
                _restore_policies(*table, before)
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.directory.exists():
            print(f"something is left in {self.directory}", flush=True)  # noqa: T201  # to the log


def is_used(directory: Path) -> bool:
    """Say whether somebody has a share in the engine of a directory, or has just given it back."""
    try:
        with directory.with_suffix(".users").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def why_not() -> str:
    """Say why no engine can be started here, or nothing if one can."""
    if os.geteuid() != 0:
        return "a Docker engine is started by root only"
    if which("dockerd") is None:
        return "there is no dockerd here: install docker.io"
    if _links() & {"docker0"}:
        return (
            "a Docker engine runs here already, and a second one would disturb it:"
            " name it in TEST_ENGINE, such as unix:///var/run/docker.sock"
        )
    return ""


def make_base(path: Path, name: str = BASE) -> str:
    """Make sure that an engine has a base image; return how it came by it.

    Where it cannot be pulled, Debian 13, whose Python is the same, is put together from the
    packages that this machine's own apt knows, and takes its place under its name.
    """
    if ask(path, "GET", f"/images/{name}/json")[0] == http.client.OK:
        return "it was there"
    image, _, tag = name.partition(":")
    ask(path, "POST", f"/images/create?fromImage={image}&tag={tag}")
    if ask(path, "GET", f"/images/{name}/json")[0] == http.client.OK:
        return "pulled"
    with contextlib.ExitStack() as stack:
        bootstrap = stack.enter_context(subprocess.Popen(_bootstrap(), stdout=subprocess.PIPE))
        stack.callback(bootstrap.terminate)
        changes = "&".join(
            f"changes={change}"
            for change in (
                "ENV%20LANG=C.UTF-8",
                "ENV%20PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin",
                "CMD%20%5B%22python3%22%5D",
            )
        )
        url = f"/images/create?fromSrc=-&repo={image}&tag={tag}&{changes}"
        status, said = ask(path, "POST", url, body=bootstrap.stdout)
        if bootstrap.wait() != 0 or status != http.client.OK or b'"error"' in said:
            raise EngineFailed(f"the base image cannot be made: {said.decode()[-500:]}")
    return "made of Debian's packages"


def debian_mirror() -> str:
    """Return where this machine's own apt has Debian from; raises EngineFailed."""
    known = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    mirrors = [url for url in known if url.rstrip("/").endswith("/debian")]
    if not mirrors:
        raise EngineFailed("this machine's apt knows no Debian mirror")
    return mirrors[0]


def _bootstrap() -> list[str]:
    thin = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
    return [
        *("mmdebstrap", "--quiet", "--variant=minbase"),
        "--include=ca-certificates,git,procps,python3,python3-venv,tmux",
        '--aptopt=APT::Install-Recommends "false"',
        *thin,
        *("trixie", "-", debian_mirror()),
    ]


# The engine's API


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    path: Path, method: str, url: str, *, body: IO[bytes] | None = None, timeout: float = 600
) -> tuple[int, bytes]:
    connection = _Connection(path, timeout)
    try:
        headers = {"Content-Type": "application/x-tar"} if body else {}
        connection.request(method, url, body, headers, encode_chunked=body is not None)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@contextlib.contextmanager
def download(path: Path, url: str, *, timeout: float = 600) -> Iterator[IO[bytes]]:
    """Give the body of an answer to be read as it comes."""
    connection = _Connection(path, timeout)
    try:
        connection.request("GET", url)
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise EngineFailed(f"{url}: {answer.read().decode()[-500:]}")
        yield answer
    finally:
        connection.close()


def answers(path: Path) -> bool:
    try:
        return ask(path, "GET", "/_ping", timeout=5)[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def _remove_containers(path: Path) -> None:
    _, listed = ask(path, "GET", "/containers/json?all=true")
    for container in json.loads(listed):
        ask(path, "DELETE", f"/containers/{container['Id']}?force=true&v=true")
    ask(path, "POST", "/networks/prune")


# What an engine leaves


def end_processes(directory: Path) -> None:
    """End what an engine that was killed has left running: its parts, and what runs in containers."""
    deadline = time.monotonic() + STOP_SECONDS
    while found := [pid for pid in _below(_parts(directory)) if is_alive(pid)]:
        if time.monotonic() > deadline:
            raise EngineFailed(f"these processes do not end: {found}")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


def _parts(directory: Path) -> list[int]:
    mark = os.fsencode(f"{directory}/")
    return [
        pid
        for pid in _pids()
        if mark in (command := _arguments_of(pid))
        and Path(os.fsdecode(command.split(b"\0")[0])).name.startswith(_PARTS)
    ]


def _below(roots: list[int]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid in _pids():
        children.setdefault(_parent_of(pid), []).append(pid)
    found: list[int] = []
    left = list(roots)
    while left:
        pid = left.pop()
        found.append(pid)
        left += children.get(pid, [])
    return found


def unmount(directory: Path) -> None:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for point in reversed(points):
        if Path(point).is_relative_to(directory):
            subprocess.run(["umount", "--lazy", point], check=False)


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def _links() -> set[str]:
    return {name for name in links() if name.startswith(_LINKS)}


def remove_links(names: Iterable[str]) -> None:
    for name in names:
        subprocess.run(["ip", "link", "delete", name], check=False)


def rules(command: str, table: str) -> list[str]:
    program = which(command)
    if program is None:
        return []
    found = subprocess.run(
        [program, "--wait", "--table", table, "--list-rules"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.splitlines()


def remove_rules(command: str, table: str, before: list[str], *, of_podman: bool) -> None:
    """Take out what is in a table and was not before: rules first, then their chains."""
    program = which(command)
    if program is None:
        return
    run = [program, "--wait", "--table", table]
    new = [
        rule.split()
        for rule in rules(command, table)
        if rule not in before and ("NETAVARK" in rule) == of_podman
    ]
    for rule in new:
        if rule[0] == "-A":
            subprocess.run([*run, "-D", *_unquoted(rule[1:])], check=False)
    for rule in new:
        if rule[0] == "-N":
            subprocess.run([*run, "-X", rule[1]], check=False)


def _restore_policies(command: str, table: str, before: list[str]) -> None:
    program = which(command)
    for policy in before:
        if program is not None and policy.startswith("-P"):
            run = [program, "--wait", "--table", table]
            subprocess.run([*run, *policy.split()], check=False)


def _unquoted(words: list[str]) -> list[str]:
    return shlex.split(" ".join(words))


# gVisor


def _gvisor(directory: Path) -> list[str]:
    """Return the argument that gives an engine gVisor, if it runs on this kernel."""
    program = which("runsc")
    platform = program and _platform(program)
    if not platform:
        return []
    # Older ones take a network for the machine's own where this file shows, as it does in all
    # networks of newer kernels; what they are told here is their container's.
    shown = subprocess.run(["unshare", "--net", "test", "-e", _SHOWS_ALL], check=False)
    network = "host" if shown.returncode == 0 else "sandbox"
    wrapper = directory / "runsc"
    wrapper.write_text(
        f'#!/bin/sh\nexec {program} --platform={platform} --network={network} "$@"\n'
    )
    wrapper.chmod(0o755)
    return ["--add-runtime", f"runsc={wrapper}"]


def _platform(program: str) -> str:
    """Return the first way in which gVisor runs a command here, or an empty text."""
    for platform in ("systrap", "ptrace"):
        command = [program, f"--platform={platform}", "--network=none", "do", "true"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            if subprocess.run(command, check=False, timeout=20).returncode == 0:
                return platform
    return ""


# Small things


def _own_network() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET) != 0:
        raise EngineFailed(os.strerror(ctypes.get_errno()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


@contextlib.contextmanager
def last_user_gone(directory: Path, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Wait until nobody holds a share in an engine; nobody gets one until what follows is done."""
    with directory.with_suffix(".users").open("a") as users:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            meanwhile()
            time.sleep(0.1)
        yield


@contextlib.contextmanager
def one_at_a_time(directory: Path, what: str) -> Iterator[None]:
    """Do something to an engine alone, whatever other processes want to do."""
    with directory.with_suffix(f".{what}").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wait(is_so: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise EngineFailed(f"this did not come true in {seconds:.0f} s: {what}")
        time.sleep(0.05)


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _arguments_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> list[str]:
    """Return a process's state, its parent and more, or that it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def _parent_of(pid: int) -> int:
    return int(_stat(pid)[1])


def is_alive(pid: int) -> bool:
    return _stat(pid)[0] not in ("Z", "X")


def which(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin")


def tail(file: Path) -> str:
    return "\n".join(file.read_text(errors="replace").splitlines()[-15:])


def _hold(directory: Path, base: str) -> None:
    """Keep an engine until this is told to end, or whoever has started it has ended."""
    started, parent = time.monotonic(), os.getppid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        with Lease(directory) as lease:
            print(f"the engine answers after {time.monotonic() - started:.1f} s", flush=True)  # noqa: T201
            if base:
                with one_at_a_time(directory, "image"):
                    how = make_base(lease.socket, base)
                print(f"{base}: {how} after {time.monotonic() - started:.1f} s", flush=True)  # noqa: T201
            while os.getppid() == parent:
                time.sleep(0.2)
    finally:
        wait(lambda: not directory.exists(), 3 * STOP_SECONDS, "the engine is gone")


def main(arguments: list[str] | None = None) -> Any:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["hold", "keep"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--base", default="")
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--engine", action="append", default=[])
    given = parser.parse_args(arguments)
    if given.verb == "hold":
        _hold(given.directory, given.base)
    else:
        _Keeper(given.directory, given.engine, alone=given.alone).run()


if __name__ == "__main__":
    main()
