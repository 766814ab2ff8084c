"""The fork server: a process with the agent server loaded, whose forks become agent servers.

Run as a program by `zygote`. It has one thread, no event loop, no socket but the one to the server,
and no data of a sandbox. The server sends it sockets; it forks for each, and only the fork reads
its orders from that socket: it enters a bubblewrap sandbox and becomes a process there. From then
on neither knows of the other. The fork server runs without rights, see
`bubblewrap.fork_server_arguments`.
"""

import atexit
import base64
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import random
import runpy
import select
import signal
import site
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Final

from ..files import resident_bytes
from . import joining
from .children import MAX_FILES, connect, listener_environment, take_name
from .watch import apply_limits

_SHARE: Final = 0.5
"""CPU share that loading takes as long as no start waits for it."""
_COLLECT_EVERY: Final = 20_000
"""Garbage collection threshold while loading: memory that is freed early is reused by later
imports."""
_MESSAGE_MAX: Final = 4096
_FILES_MAX: Final = 8
_PASSED: Final = 3
"""Descriptor number of the socket that a fork listens on."""
_ORDER_SECONDS: Final = 60.0
_FAILED: Final = 1

_FOR_EACH: Final = frozenset({"HOME", "TMPDIR", "TEMP", "TMP", "PATH", "TMUX_TMPDIR", "PWD", "TZ"})
"""Variables that are also read while loading, and are the same in all sandboxes or read again."""

_EARLY: Final = (
    *("PYTHON", "LD_", "LC_", "LANG", "MALLOC_", "GLIBC_", "GCONV_", "LOCPATH", "OPENSSL_"),
    *("GRPC_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "RAYON_", "RUST_", "TOKENIZERS_"),
    *("FASTMCP_", "MCP_", "BROWSER_USE_", "LMNR_", "OTEL_", "PROTOCOL_BUFFERS_"),
)
"""Prefixes of variables that have an effect before or without a read that `ReadVariables` sees."""


def main() -> None:
    """Load, fork for each socket until the server hangs up, and run the program in a fork."""
    # Registered first, so called last: exit without freeing what was loaded.
    exit_code: list[int] = []
    atexit.register(_end, exit_code)
    orders = _load_and_serve(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
    exit_code.append(1)
    try:
        orders.run()
        exit_code[0] = 0
    except SystemExit as exc:
        exit_code[0] = _code_of(exc)


def _end(exit_code: Sequence[int]) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code[0] if exit_code else _FAILED)


def _load_and_serve(number: int, budget: int, program: str, preload: str) -> "Fork":
    """Load and serve; return in forks only."""
    # The parent of the server may have left it open files that children inherit.
    os.closerange(number + 1, MAX_FILES)
    control = socket.socket(fileno=number)
    control.set_inheritable(False)
    sys.path[:] = [part for part in sys.path if part]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_name(b"agentsvc-zygote")
    warm = PreloadedProgram(program, preload)
    try:
        warm.load(control)
        problem = warm.problem(budget)
    except Exception as exc:  # noqa: BLE001  # whatever a package does while it is loaded
        problem = f"{type(exc).__name__}: {exc}"
    said = {"failed": problem} if problem else {"ready": os.getpid()}
    with contextlib.suppress(OSError):
        control.send(json.dumps(said).encode()[:_MESSAGE_MAX])
        if not problem and (fork := warm.serve(control)):
            return fork
    os._exit(0)


class PreloadedProgram:
    """A loaded program and its forks."""

    def __init__(self, program: str, preload: str) -> None:
        """Store the program, and the module that loads it and sets it up in a fork."""
        self.program = program
        self.preload = preload
        self.asked = ReadVariables()
        self.set_up: Callable[[], None] = _nothing

    def load(self, control: socket.socket) -> None:
        """Load everything that is the same for each sandbox."""
        search_path = list(sys.path)
        thresholds = gc.get_threshold()
        gc.set_threshold(_COLLECT_EVERY)
        throttle = _Throttle(control)
        sys.meta_path.insert(0, throttle)
        with self.asked.listening():
            preload: Any = importlib.import_module(self.preload)
            preload.load()
        self.asked.again = tuple(preload.READ_AGAIN)
        self.set_up = preload.set_up
        sys.meta_path.remove(throttle)
        sys.path[:] = search_path
        sys.path_importer_cache.clear()
        importlib.invalidate_caches()
        ctypes.CDLL(None).malloc_trim(0)
        gc.set_threshold(*thresholds)
        gc.freeze()

    def problem(self, budget: int) -> str:
        """Return why no fork of this process may be used, or an empty string."""
        tasks = len(list(Path("/proc/self/task").iterdir()))
        if tasks != 1:
            return f"it has {tasks} threads once it is loaded"
        size = resident_bytes("self")
        return f"it takes {size >> 20} MiB, more than it may" if size > budget else ""

    def serve(self, control: socket.socket) -> "Fork | None":
        """Fork for each socket; return in a fork that is in its sandbox, and at the end."""
        while True:
            message, files, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return None
            for number in files:
                if _fork() == 0:
                    control.close()
                    return self._be_of_use(number)
                os.close(number)

    def _be_of_use(self, number: int) -> "Fork":
        """Return in the last of the forks; the others exit here."""
        with _ending_alone():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            holder = socket.socket(fileno=number)
            holder.settimeout(_ORDER_SECONDS)
            message, files, _, _ = socket.recv_fds(holder, _MESSAGE_MAX, _FILES_MAX)
            if message != b"join":
                os._exit(_FAILED)
            told, talk = files
            with os.fdopen(told, "rb") as file:
                orders: dict[str, Any] = json.load(file)
            reason = self._join(holder, orders)
            if reason is None:
                holder.close()
                return Fork(self, orders, talk)
            holder.send(reason.encode()[:_MESSAGE_MAX] or b"joined")
            os._exit(0)

    def _join(self, holder: socket.socket, orders: Mapping[str, Any]) -> str | None:
        """Fork into a sandbox, as a child of its first process; return None in that fork."""
        if reason := self.asked.refusal(orders["env"]):
            return reason
        try:
            holder.send(b"here")
            flags, numbers, _, _ = socket.recv_fds(holder, _MESSAGE_MAX, _FILES_MAX)
            joining.enter(int(flags), numbers)
            # When the first fork has ended, the second becomes a child of the sandbox's first
            # process.
            first = _fork()
        except (OSError, ValueError) as exc:
            return f"its namespaces cannot be joined: {exc}"
        if first:
            _, status = os.waitpid(first, 0)
            return "no process can be made there" if status else ""
        if _fork():
            os._exit(0)
        return None


class Fork:
    """A fork in its sandbox that is about to become the program."""

    def __init__(self, warm: PreloadedProgram, orders: Mapping[str, Any], talk: int) -> None:
        """Give up all rights, and receive the descriptors from the sandbox's first process."""
        apply_limits(dict(orders))
        joining.renounce(base64.b64decode(orders["filter"]), has_own_user=orders["has_own_user"])
        self._warm, self._orders = warm, orders
        parent = socket.socket(fileno=talk)
        parent.settimeout(_ORDER_SECONDS)
        parent.send(str(os.getpid()).encode())
        message, files, _, _ = socket.recv_fds(parent, _MESSAGE_MAX, _FILES_MAX)
        if not message or os.getppid() != 1:
            os._exit(_FAILED)
        self._umask = int(message.decode())
        os.setsid()
        out, err, *passed = files
        connect(out, err)
        for number in passed:
            os.dup2(number, _PASSED)
        os.closerange(_PASSED + len(passed), MAX_FILES)
        self._told = listener_environment([_PASSED] * len(passed))

    def run(self) -> None:
        """Run the program as `python -m` does."""
        cwd, argv = self._orders["cwd"], self._orders["argv"]
        os.umask(self._umask)
        os.chdir(cwd)
        take_signals()
        begin_anew({**self._orders["env"], **self._told, **self._warm.asked.made})
        take_name(Path(argv[0]).name.encode()[:15])
        sys.path.insert(0, cwd)
        sys.argv = [self._warm.program, *argv[3:]]
        self._warm.set_up()
        runpy.run_module(self._warm.program, run_name="__main__", alter_sys=True)


def _nothing() -> None:
    """Set up nothing: no program is loaded yet."""


class ReadVariables:
    """The environment variables that were read while loading, and their values."""

    def __init__(self) -> None:
        self.again: tuple[str, ...] = ()
        """Prefixes of variables that are ignored, because each fork reads them again."""
        self.found: dict[str, str | None] = {}
        self.made: dict[str, str] = {}
        """Variables that loading itself has set, as it would in each process."""
        self._begun_with = dict(os.environ)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Record which variables are read and set in the context."""
        kind: Any = type(os.environ)
        read, write = kind.__getitem__, kind.__setitem__

        def listen(environ: Any, name: Any) -> Any:
            text = os.fsdecode(name) if isinstance(name, str | bytes) else str(name)
            if text in self.made:
                return read(environ, name)
            self.found.setdefault(text, None)
            value = read(environ, name)
            self.found[text] = os.fsdecode(value)
            return value

        def note(environ: Any, name: Any, value: Any) -> None:
            write(environ, name, value)
            self.made[os.fsdecode(name)] = os.fsdecode(value)

        kind.__getitem__, kind.__setitem__ = listen, note
        try:
            yield
        finally:
            kind.__getitem__, kind.__setitem__ = read, write

    def refusal(self, env: Mapping[str, str]) -> str:
        """Return why the loaded program does not fit an environment, or an empty string."""
        for name in sorted(self.found.keys() - _FOR_EACH):
            if not name.startswith(self.again) and env.get(name) != self.found[name]:
                return f"`{name}` counts while the agent server is loaded"
        for name, value in sorted(env.items()):
            if name.startswith(_EARLY) and self._begun_with.get(name) != value:
                return f"`{name}` counts when Python starts"
        return ""


def begin_anew(env: Mapping[str, str]) -> None:
    """Set this environment, and reseed the random number generators."""
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    multiprocessing.current_process().authkey = os.urandom(32)
    if site.ENABLE_USER_SITE:
        site.addsitedir(site.getusersitepackages())


def take_signals() -> None:
    """Reset signal handlers to those of a new Python."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class _Throttle(MetaPathFinder):
    """Import hook that throttles loading until a start waits, and exits if the server is gone."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._is_awaited = False
        self._began = time.monotonic()
        self._used = time.process_time()

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Find nothing."""
        del fullname, path, target
        due = 0.0
        if not self._is_awaited:
            used = time.process_time() - self._used
            due = used / _SHARE - (time.monotonic() - self._began)
        ready, _, _ = select.select([self._control], [], [], max(due, 0))
        if not ready:
            return
        self._is_awaited = True
        if not self._control.recv(1):
            raise SystemExit


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


@contextlib.contextmanager
def _ending_alone() -> Iterator[None]:
    """Exit on any error, so that none propagates to the code of the fork server."""
    try:
        yield
    except BaseException:  # noqa: BLE001  # there is no caller to report it to
        kind, exc, trace = sys.exc_info()
        if kind is not None and exc is not None:
            sys.excepthook(kind, exc, trace)
        os._exit(_FAILED)


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1
