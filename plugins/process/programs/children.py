"""Child processes: the sandbox's command, and further commands requested over the control socket.

Shared by the shim and the first process inside a sandbox; uses the standard library alone, since
neither has more.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ..files import stat_of
from ..landlock import put_away
from . import spaces

_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_CHUNK: Final = 65536
_PIPE_SIZE_MAX: Final = 1024 * 1024
_REQUEST_MAX: Final = 4 * 1024 * 1024
_REQUEST_SECONDS: Final = 10.0
_REFUSE_SECONDS: Final = 1.0
"""How long a request may block the holder if there is no room for a process to read it."""
_NO_ROOM: Final = 126
_NO_USER: Final = 1
_CONNECT_SECONDS: Final = 0.4
_POLL_SECONDS: Final = 0.01
_WAIT_SECONDS_MAX: Final = 5.0
_DEFAULTS: Final = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGCHLD]
"""Signals that are reset to their defaults for a command."""

MAX_FILES: Final = 65536
"""Above any descriptor that the process may have inherited from its parent."""

LISTENER: Final = "AGENTSVC_LISTENER"
"""The environment variable with the descriptor of the socket that a command listens on."""

type Json = dict[str, Any]


class Command:
    """A child in a session of its own, and the read ends of its two output pipes, if any."""

    def __init__(self, pid: int, out: int = -1, err: int = -1) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.exit_code: int | None = None
        self.watched = 0
        """Another child whose end is of interest; 0 once it has ended."""

    def reap(self) -> bool:
        """Reap every child that has ended; return whether the command is among them."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.exit_code is not None
            if pid == 0:
                return self.exit_code is not None
            if pid == self.watched:
                self.watched = 0
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.exit_code = code if code >= 0 else 128 - code


def start(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    cwd: str,
    umask: int,
    keep: Sequence[int] = (),
    streams: tuple[int, int] | None = None,
    prepare: Callable[[int], None] | None = None,
) -> Command:
    """Start a command; `keep` are descriptors that it inherits, too.

    With `streams` it writes to these and has no pipes. `prepare` runs in the child first, with the
    descriptor for its error messages.
    """
    pipes = [os.pipe(), os.pipe()] if streams is None else []
    out, err = streams or [writer for _, writer in pipes]
    pid = os.fork()
    if pid == 0:
        for number in keep:
            os.set_inheritable(number, True)
        if prepare is not None:
            prepare(err)
        execute(argv, env, cwd=cwd, umask=umask, out=out, err=err)
    for reader, writer in pipes:
        os.close(writer)
        os.set_blocking(reader, False)
    return Command(pid, *[reader for reader, _ in pipes])


def start_ordered(
    orders: Json, held: "Ports", umask: int, streams: tuple[int, int] | None = None
) -> Command:
    """Start the ordered command, and let it inherit the socket of its port."""
    passed = held.passed()
    return start(
        [fill(part, held.numbers) for part in orders["argv"]],
        environment(orders, {**orders["env"], **listener_environment(passed)}, held.numbers),
        cwd=orders["cwd"],
        umask=umask,
        keep=passed,
        streams=streams,
    )


class Execution:
    """A further command, requested over the control socket; runs in a fork of the shim.

    The fork is a reaper itself, so that at the time limit all processes of the command can be found
    and ended. Daemons that the command leaves running become children of the shim afterwards.
    """

    def __init__(self, orders: Json, ports: Mapping[str, int], umask: int) -> None:
        self.orders = orders
        self.ports = ports
        self.umask = umask

    def serve_apart(self, connection: socket.socket, prepare: Callable[[], None]) -> None:
        """Serve a connection in a fork, which runs `prepare` first; refuse it if the fork fails."""
        try:
            pid = os.fork()
        except OSError:
            with contextlib.suppress(OSError, ValueError):
                self._refuse(connection)
            return
        if pid == 0:
            code = 1
            try:
                prepare()
                self.serve(connection)
                code = 0
            finally:
                os._exit(code)

    def _refuse(self, connection: socket.socket) -> None:
        if self._read_request(connection, _REFUSE_SECONDS) is None:
            return
        text = b"cannot run it: there is no room for another process\n"
        head = {"exit_code": _NO_ROOM, "timed_out": False, "truncated": False, "stdout": 0}
        connection.sendall(json.dumps({**head, "stderr": len(text)}).encode() + b"\n" + text)

    def _read_request(self, connection: socket.socket, time_limit: float) -> Json | None:
        """Return the requested command; a query for open ports is answered here instead.

        Also returns None if the request is incomplete or has another token.
        """
        deadline = time.monotonic() + time_limit
        received = b""
        while not received.endswith(b"\n"):
            connection.settimeout(max(deadline - time.monotonic(), _POLL_SECONDS))
            chunk = connection.recv(_CHUNK)
            if not chunk or len(received) > _REQUEST_MAX or time.monotonic() > deadline:
                return None
            received += chunk
        connection.settimeout(None)
        try:
            request = json.loads(received)
        except RecursionError:
            return None
        if not isinstance(request, dict):
            return None
        if request.get("token", "") != self.orders.get("control_token", ""):
            return None
        if "connect" in request:
            self._answer_open(connection, request)
            return None
        return request

    def _answer_open(self, connection: socket.socket, request: Json) -> None:
        """Send whether all ports accept connections, after a wait of some seconds if asked."""
        end = time.monotonic() + min(request.get("wait", 0.0), _WAIT_SECONDS_MAX)
        while not (is_open := all(map(_answers, request["connect"]))) and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)
        connection.sendall(json.dumps({"open": is_open}).encode() + b"\n")

    def serve(self, connection: socket.socket) -> None:
        """Read one request, run it, and send the response: a line of JSON, then both streams."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        become_reaper(b"agentsvc-exec")
        wake = wake_on_child()
        request = self._read_request(connection, _REQUEST_SECONDS)
        if request is None:
            return
        env = {**self.orders["env"], **request["env"]}
        command = start(
            [*self.orders["wrap"], *request["argv"]],
            environment(self.orders, env, self.ports),
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
                    read_available(wake)
                elif descriptor == connection.fileno():
                    return False  # the caller closed the connection
                elif not by_descriptor[descriptor].read():
                    poller.unregister(descriptor)
        return True


class Capture:
    """The first bytes of a pipe, up to a limit; the rest is read and dropped."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.limit = limit
        self.kept = b""
        self.is_cut = False

    def read(self) -> bool:
        """Read the available bytes; return False at the end of the stream."""
        taken, is_open = read_available(self.descriptor)
        room = self.limit - len(self.kept)
        self.kept += taken[:room]
        self.is_cut = self.is_cut or len(taken) > room
        return is_open


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


class Ports:
    """Reserved ports of the loopback interface."""

    def __init__(self, orders: Json) -> None:
        """Bind the ports; raises OSError if one is not available.

        Nobody else can bind the port that the command inherits, named `passed` in the orders, from
        now on. The others are bound by number by processes in the sandbox, and could be bound by
        anybody in the same network.
        """
        # A bound socket that does not listen prevents the kernel from assigning the port to others,
        # while a server that sets SO_REUSEADDR, as all do, can still listen on it. Reuse is enabled
        # only after the bind, so that two sandboxes cannot hold the same port; without it nobody
        # can bind the port again. The command listens on its inherited socket when it is ready;
        # until then connections are refused.
        self._held: dict[str, socket.socket] = {}
        self._passed = orders["passed"]
        for name, number in orders["ports"]:
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.bind(("127.0.0.1", number))
            if name != self._passed:
                held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._held[name] = held
        self.numbers = {name: one.getsockname()[1] for name, one in self._held.items()}

    def passed(self) -> list[int]:
        """Return the descriptor that the command inherits, if any."""
        return [self._held[self._passed].fileno()] if self._passed in self._held else []

    def deliver_once(self) -> None:
        """Close our copy of the inherited socket, once the command has it."""
        if self._passed in self._held:
            self._held.pop(self._passed).close()


def listener_environment(passed: Sequence[int]) -> dict[str, str]:
    """Return the environment variable that names the inherited socket, if any."""
    return {LISTENER: str(passed[0])} if passed else {}


def start_time(pid: int) -> int:
    """Return a process's start time in ticks since boot; with the pid, its identity."""
    try:
        return int(stat_of(pid)[19])
    except OSError:
        return 0


def kill_descendants() -> None:
    """Kill all descendants of this process; as it is their reaper, none can escape."""
    while True:
        for pid, job in descendants(os.getpid()):
            # An ended process still shows the group that its descendants may be in.
            if job != os.getpgrp():
                with contextlib.suppress(OSError):
                    os.killpg(job, signal.SIGKILL)
            kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def descendants(root: int) -> list[tuple[int, int]]:
    """Return pid and process group of all descendants of a process."""
    children: dict[int, list[tuple[int, int]]] = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # names are enough
        if entry.isdigit():
            with contextlib.suppress(OSError):
                _, parent, job, *_ = stat_of(entry)
                children.setdefault(int(parent), []).append((int(entry), int(job)))
    found = [(root, 0)]
    for pid, _ in found:
        found += children.get(pid, ())
    return found[1:]


def environment(
    orders: Json, env: Mapping[str, str], ports: Mapping[str, int]
) -> Mapping[str, str]:
    """Return a command's environment, encoded for Landlock's wrapper if there is one."""
    filled = {name: fill(value, ports) for name, value in env.items()}
    return put_away(filled) if orders["wrap"] else filled


def execute(
    argv: Sequence[str], env: Mapping[str, str], *, cwd: str, umask: int, out: int, err: int
) -> None:
    """Turn this process, a new child, into a command; never returns."""
    try:
        os.setsid()
        for number in _DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        connect(out, err)
        os.umask(umask)
        os.chdir(cwd)
        os.execvpe(argv[0], list(argv), env)  # noqa: S606  # running a command is what it is for
    except (OSError, ValueError) as exc:
        os.write(2, f"cannot run {argv[0]}: {getattr(exc, 'strerror', exc)}\n".encode())
        os._exit(126 if getattr(exc, "errno", 0) == errno.EACCES else 127)
    finally:
        os._exit(127)


def connect(out: int, err: int) -> None:
    """Point stdin to /dev/null, and stdout and stderr to these descriptors."""
    for number, at in ((os.open(os.devnull, os.O_RDONLY), 0), (out, 1), (err, 2)):
        os.dup2(number, at)


def ignore_terminate() -> None:
    """Make this process, a new child, ignore SIGTERM, also after an exec."""
    _DEFAULTS.remove(signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def become_user(user: int, around: int | None, err: int) -> None:
    """Change to a user in a new child, as `spaces.become` does, or write an error and exit."""
    try:
        spaces.become(user, around)
    except OSError as exc:
        who = f"user {user}" if user else "the namespace of the zygote"
        os.write(err, f"{who} cannot be had: {exc.strerror}\n".encode())
        os._exit(_NO_USER)


def take_name(name: bytes) -> None:
    """Set the name of this process in the process table."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, name, 0, 0, 0)


def become_reaper(name: bytes) -> None:
    """Become the reaper of orphaned descendants, and set the name of this process."""
    take_name(name)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def wake_on_child() -> int:
    """Return a descriptor that is readable whenever a child has ended."""
    wake, wakened = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakened, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
    return wake


def read_available(descriptor: int) -> tuple[bytes, bool]:
    """Return the bytes that a pipe holds, and whether more may come.

    Bounded, so that a flood of output cannot block the caller.
    """
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


def fill(text: str, ports: Mapping[str, int]) -> str:
    """Replace each `{port.NAME}` by that port's number."""
    for name, number in ports.items():
        text = text.replace("{port.%s}" % name, str(number))  # noqa: UP031  # braces
    return text


def kill(pid: int, number: int) -> None:
    """Send a signal; does nothing if there is no such process."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)
