"""The parent of everything that runs in one process sandbox.

Run as a script, by `agentsvc.backends.process`, with the standard library alone. It reads its
orders from standard input, so that no secret is in an argument list; holds the sandbox's ports;
starts the command; writes its output to a log; takes further commands over a socket; and records
how the command ended. Whatever a sandbox starts stays its descendant, even what daemonises. It
outlives the server that started it: a later one finds all it needs in the state file.
"""

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

VERSION: Final = 1
"""Of the orders, the state file and the socket's language."""

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_CHUNK = 65536
_PIPE_SIZE_MAX = 1024 * 1024
_LINE_MAX = 8192
_REQUEST_MAX = 4 * 1024 * 1024
_REQUEST_SECONDS = 10.0
_SECRET_LENGTH_MIN = 8
_STARS = b"**********"

type Json = dict[str, Any]


def main() -> None:
    """Do what the orders say until the command has ended and nothing of it is left."""
    orders: Json = json.load(sys.stdin)
    umask = os.umask(0o077)
    _become_reaper(b"agentsvc-shim")
    try:
        lock = _lock(Path(orders["directory"]))
    except OSError:
        os.write(1, b"taken\n")
        return
    Shim(orders, umask).run()
    os.close(lock)


class Shim:
    """One sandbox's life: ports, command, log, socket, end."""

    def __init__(self, orders: Json, umask: int) -> None:
        self.orders = orders
        self.umask = umask
        self.state_file = Path(orders["directory"], "state.json")
        self.state: Json = {
            "version": VERSION,
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "shim": [os.getpid(), start_time(os.getpid())],
            "command": None,
            "ports": {},
            "cgroup": "",
            "exit": None,
        }
        self.log = Log(Path(orders["directory"], "log"), orders["log_bytes"], orders["secrets"])
        self.held: list[socket.socket] = []

    def run(self) -> None:
        """Start the command, tell the server, and stay until all has ended."""
        self.state["cgroup"] = _join(self.orders["cgroup"])
        try:
            self._hold_ports()
        except OSError as exc:
            self._record_exit(None, f"a port cannot be had: {exc.strerror}")
            _tell_ready()
            return
        listener = self._listen()
        wake = _wake_on_child()
        ports = self.state["ports"]
        command = Command(
            [_fill(part, ports) for part in self.orders["argv"]],
            {name: _fill(value, ports) for name, value in self.orders["env"].items()},
            cwd=self.orders["cwd"],
            umask=self.umask,
        )
        self.state["command"] = [command.pid, start_time(command.pid)]
        self._save()
        # A shutting-down machine terminates everybody; the command deserves to hear it, too.
        signal.signal(signal.SIGTERM, lambda _number, _frame: _kill(command.pid, signal.SIGTERM))
        _tell_ready()
        self._attend(command, listener, wake)
        self._finish(command)

    def _hold_ports(self) -> None:
        # A bound socket that does not listen keeps a port from being given to anybody, while a
        # server that sets SO_REUSEADDR, as all do, can still listen on it. Reuse is allowed only
        # after the bind, so that two sandboxes cannot hold the same number.
        for name, number in self.orders["ports"]:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.bind(("127.0.0.1", number))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.held.append(held)
            self.state["ports"][name] = held.getsockname()[1]

    def _listen(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            Path(self.orders["control"]).unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.orders["control"])
        listener.listen(16)
        return listener

    def _attend(self, command: "Command", listener: socket.socket, wake: int) -> None:
        streams = {command.out: b"o", command.err: b"e"}
        poller = select.poll()
        for descriptor in (*streams, listener.fileno(), wake):
            poller.register(descriptor, select.POLLIN)
        while not command.reap():
            for descriptor, _ in poller.poll():
                if descriptor == wake:
                    _take(wake)
                elif descriptor == listener.fileno():
                    self._serve(listener)
                elif not self.log.copy(descriptor, streams[descriptor]):
                    poller.unregister(descriptor)

    def _serve(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            code = 1
            try:
                Execution(self.orders, self.state["ports"], self.umask).serve(connection)
                code = 0
            finally:
                os._exit(code)
        connection.close()

    def _finish(self, command: "Command") -> None:
        self._copy_rest(command)
        self._record_exit(command.exit_code, "")
        kill_descendants()
        self._copy_rest(command)
        self.log.close()

    def _copy_rest(self, command: "Command") -> None:
        for descriptor, stream in ((command.out, b"o"), (command.err, b"e")):
            self.log.copy(descriptor, stream)
        self.log.end_lines()

    def _record_exit(self, code: int | None, reason: str) -> None:
        self.state["exit"] = {"code": code, "reason": reason, "at": time.time()}  # noqa: TID251  # runs without the package
        self._save()

    def _save(self) -> None:
        # A full disk or a removed directory must not take the sandbox down with it.
        with contextlib.suppress(OSError):
            new = self.state_file.with_suffix(".new")
            new.write_text(json.dumps(self.state))
            new.replace(self.state_file)


class Command:
    """A child in a session of its own, and the ends of its two output pipes."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], *, cwd: str, umask: int
    ) -> None:
        self.exit_code: int | None = None
        self.out, out = os.pipe()
        self.err, err = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _become(argv, env, cwd=cwd, umask=umask, out=out, err=err)
        os.close(out)
        os.close(err)
        os.set_blocking(self.out, False)
        os.set_blocking(self.err, False)

    def reap(self) -> bool:
        """Collect every child that has ended; say whether the command is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.exit_code is not None
            if pid == 0:
                return self.exit_code is not None
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code


class Execution:
    """A further command, asked for over the socket; runs in a fork of the shim.

    That fork reaps for itself, so that at the time limit all that the command started can be
    found and ended. What it leaves running on purpose falls to the shim afterwards.
    """

    def __init__(self, orders: Json, ports: Mapping[str, int], umask: int) -> None:
        self.orders = orders
        self.ports = ports
        self.umask = umask

    def serve(self, connection: socket.socket) -> None:
        """Read one request, run it, answer: a line of JSON, then both streams."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _become_reaper(b"agentsvc-exec")
        wake = _wake_on_child()
        request = _read_request(connection)
        if request is None:
            return
        env = {**self.orders["env"], **request["env"]}
        command = Command(
            request["argv"],
            {name: _fill(value, self.ports) for name, value in env.items()},
            cwd=self.orders["workspace"],
            umask=self.umask,
        )
        out = Capture(command.out, request["max_output"])
        err = Capture(command.err, request["max_output"])
        ended = self._attend(command, connection, wake, (out, err), request["time_limit"])
        if not ended:
            kill_descendants()
        out.read()
        err.read()
        head = {
            "exit_code": command.exit_code if ended else None,
            "timed_out": not ended,
            "truncated": out.is_cut or err.is_cut,
            "stdout": len(out.kept),
            "stderr": len(err.kept),
        }
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(head).encode() + b"\n" + out.kept + err.kept)

    def _attend(
        self,
        command: Command,
        connection: socket.socket,
        wake: int,
        captures: "Sequence[Capture]",
        time_limit: float,
    ) -> bool:
        deadline = time.monotonic() + time_limit
        poller = select.poll()
        for descriptor in (wake, connection.fileno(), *(item.descriptor for item in captures)):
            poller.register(descriptor, select.POLLIN)
        by_descriptor = {item.descriptor: item for item in captures}
        while not command.reap():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poller.poll(left * 1000):
                if descriptor == wake:
                    _take(wake)
                elif descriptor == connection.fileno():
                    return False  # the caller has hung up
                elif not by_descriptor[descriptor].read():
                    poller.unregister(descriptor)
        return True


class Capture:
    """The beginning of what a pipe brought; the rest is read and dropped."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = b""
        self.is_cut = False

    def read(self) -> bool:
        """Take what is there; return False at the end of the stream."""
        taken, is_open = _take(self.descriptor)
        room = self.limit - len(self.kept)
        self.kept += taken[:room]
        self.is_cut = self.is_cut or len(taken) > room
        return is_open


class Log:
    """Two files of bounded size with one line of output per line, its time and its stream."""

    def __init__(self, path: Path, size: int, secrets: Iterable[str]) -> None:
        self.path = path
        self.size = size // 2
        self.file = path.open("ab")
        self.partial = {b"o": b"", b"e": b""}
        lines = {line for secret in secrets for line in secret.splitlines()}
        self.secrets = [line.encode() for line in lines if len(line) >= _SECRET_LENGTH_MIN]

    def copy(self, descriptor: int, stream: bytes) -> bool:
        """Move what a pipe holds into the log; return False at the end of the stream."""
        taken, is_open = _take(descriptor)
        *lines, rest = (self.partial[stream] + taken).split(b"\n")
        while len(rest) > _LINE_MAX:
            lines.append(rest[:_LINE_MAX])
            rest = rest[_LINE_MAX:]
        self.partial[stream] = rest
        self._write(stream, lines)
        return is_open

    def end_lines(self) -> None:
        """Write lines that were begun and will not be finished."""
        for stream, rest in self.partial.items():
            if rest:
                self._write(stream, [rest])
                self.partial[stream] = b""

    def close(self) -> None:
        """Write what is left."""
        with contextlib.suppress(OSError):
            self.file.close()

    def _write(self, stream: bytes, lines: Sequence[bytes]) -> None:
        now = time.time()  # noqa: TID251  # runs without the package
        head = b"%.3f %s " % (now, stream)
        text = b"".join(head + self._mask(line) + b"\n" for line in lines)
        # A full disk loses lines, not the sandbox.
        with contextlib.suppress(OSError):
            if self.file.tell() > self.size:
                self.file.close()
                self.path.replace(self.path.with_suffix(".1"))
                self.file = self.path.open("ab")
            self.file.write(text)
            self.file.flush()

    def _mask(self, line: bytes) -> bytes:
        for secret in self.secrets:
            line = line.replace(secret, _STARS)
        return line


def start_time(pid: int) -> int:
    """Return when a process started, in ticks since boot; with the pid, its identity."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def kill_descendants() -> None:
    """End all that has come from this process; as it is their reaper, none can escape."""
    while True:
        for pid, job in _descendants(os.getpid()):
            # Ended ones tell the group of whatever they became before they ended.
            if job != os.getpgrp():
                with contextlib.suppress(OSError):
                    os.killpg(job, signal.SIGKILL)
            _kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def _descendants(root: int) -> list[tuple[int, int]]:
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # names are enough
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                _, parent, job, *_ = stat.rpartition(")")[2].split()
                children.setdefault(int(parent), []).append((int(entry), int(job)))
    found = [(root, 0)]
    for pid, _ in found:
        found += children.get(pid, ())
    return found[1:]


def _become(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: str, umask: int, out: int, err: int
) -> None:
    # Runs in the child and never returns.
    try:
        os.setsid()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.umask(umask)
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), env)  # noqa: S606  # running a command is what it is for
    except (OSError, ValueError) as exc:
        os.write(2, f"cannot run {argv[0]}: {getattr(exc, 'strerror', exc)}\n".encode())
        os._exit(126 if getattr(exc, "errno", 0) == errno.EACCES else 127)
    finally:
        os._exit(127)


def _become_reaper(name: bytes) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, name, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _lock(directory: Path) -> int:
    # One shim per sandbox, ever: not while another runs, and not after the command has ended.
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if (directory / "state.json").exists():
        raise FileExistsError
    return descriptor


def _join(cgroup: str) -> str:
    if not cgroup:
        return ""
    try:
        Path(cgroup).mkdir(exist_ok=True)
        Path(cgroup, "cgroup.procs").write_text("0")
    except OSError:
        with contextlib.suppress(OSError):
            Path(cgroup).rmdir()
        return ""
    return cgroup


def _tell_ready() -> None:
    # The server may have been killed meanwhile; a later one looks for the state file.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, b"ready\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def _wake_on_child() -> int:
    wake, wakened = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakened, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    return wake


def _take(descriptor: int) -> tuple[bytes, bool]:
    # What a pipe can hold, and whether more may come. Bounded, so that no flood holds us here.
    taken = b""
    while len(taken) < _PIPE_SIZE_MAX:
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return taken, True
        if not chunk:
            return taken, False
        taken += chunk
    return taken, True


def _read_request(connection: socket.socket) -> Json | None:
    connection.settimeout(_REQUEST_SECONDS)
    received = b""
    while not received.endswith(b"\n"):
        chunk = connection.recv(_CHUNK)
        if not chunk or len(received) > _REQUEST_MAX:
            return None
        received += chunk
    connection.settimeout(None)
    request: Json = json.loads(received)
    return request


def _fill(text: str, ports: Mapping[str, int]) -> str:
    for name, number in ports.items():
        text = text.replace("{port.%s}" % name, str(number))  # noqa: UP031  # braces
    return text


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
