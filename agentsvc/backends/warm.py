"""A process that has loaded the agent server, and of which each fork becomes one.

Run as a program by `agentsvc.backends.zygote`. It has one thread, no event loop, no socket but the
one to the server, and nothing that belongs to a sandbox. The server sends it sockets; for each it
forks, and the fork alone hears on that socket what it is to be: a process inside a sandbox that
bubblewrap holds, to which it is given away. From then on neither knows of the other. It has no rights,
as `bubblewrap.fork_server_arguments` says.
"""

import ast
import atexit
import base64
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any, Final, NoReturn

from agentsvc.backends import built, fresh, joining
from agentsvc.backends.children import FILES_AT_MOST, told_of
from agentsvc.backends.watch import hold

_PARTS: Final = ("__main__", "api")
"""The modules of a program that do things when they are imported."""

_SHARE: Final = 0.5
"""How much of a processor it takes to load as long as nobody waits."""
_MESSAGE_MAX: Final = 4096
_FILES_MAX: Final = 8
_PASSED: Final = 3
"""The number under which a fork has the socket of the port that it listens at."""
_ORDER_SECONDS: Final = 60.0
_PR_SET_NAME: Final = 15
_FAILED: Final = 1


def main() -> None:
    """Load, and fork for each socket that comes, until the server hangs up."""
    try:
        _load_and_serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
    finally:
        # Letting go of all that was loaded would take long, and nothing of it has anything to end.
        os._exit(0)


def _load_and_serve(number: int, budget: int, top: str, what: Sequence[Any]) -> None:
    # Whoever started the server may have left it files that are open for its children, too.
    os.closerange(number + 1, FILES_AT_MOST)
    control = socket.socket(fileno=number)
    control.set_inheritable(False)
    os.environ.pop("AGENTSVC_SPACE", None)
    sys.path[:] = [part for part in sys.path if part]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"agentsvc-zygote", 0, 0, 0)
    warm = Warm(*what)
    try:
        warm.load(control, top)
        problem = warm.problem(budget)
    except Exception as exc:  # noqa: BLE001  # whatever a package does while it is loaded
        problem = f"{type(exc).__name__}: {exc}"
    said = {"failed": problem} if problem else {"ready": os.getpid(), "note": warm.note[:512]}
    with contextlib.suppress(OSError):
        control.send(json.dumps(said).encode()[:_MESSAGE_MAX])
        if not problem:
            warm.serve(control)


class Warm:
    """What has been loaded, and what of it is for no sandbox."""

    def __init__(self, program: str, ahead: Mapping[str, Any]) -> None:
        """Take what is to be loaded, and what is known of it, as in `agentsvc.backends.ahead`."""
        self.program = program
        self.ahead = ahead
        self.built = built.Built(ahead["application"] or {})
        self.note = ""
        self.asked = fresh.Asked()
        self.kept = fresh.Kept("/", ())

    def load(self, control: socket.socket, top: str) -> None:
        """Import all that the agent server imports before it reads its configuration, and more.

        `top` is a directory for it alone, which is gone afterwards.
        """
        self.kept = fresh.Kept(top, ("HOME", "TMPDIR", fresh.HERE))
        search_path = list(sys.path)
        try:
            Path(top).mkdir(mode=0o700, exist_ok=True)
            for directory, name in self.kept.directories.items():
                Path(directory).mkdir()
                os.environ[name] = directory
            tempfile.tempdir = None
            os.chdir(os.environ[fresh.HERE])
            gc.disable()
            throttle = _Throttle(control)
            sys.meta_path.insert(0, throttle)
            with self.asked.listening():
                for name in _parts(self.program):
                    _import_parts(name)
                for name in self.ahead["loaded"]:
                    with contextlib.suppress(ImportError):
                        importlib.import_module(name)
            self._build()
            for name, function in self.ahead["called"]:
                # It saves time, and is no reason to be without a zygote.
                with contextlib.suppress(Exception):
                    getattr(sys.modules[name], function)()
            sys.meta_path.remove(throttle)
            sys.path[:] = search_path
            sys.path_importer_cache.clear()
            importlib.invalidate_caches()
            self.kept.find()
            gc.enable()
            gc.freeze()
        finally:
            os.chdir("/")
            shutil.rmtree(top, ignore_errors=True)

    def _build(self) -> None:
        if (plan := self.ahead["application"]) is None:
            return
        asked = fresh.Asked()
        with asked.listening():
            self.note = self.built.build()
        for name, value in asked.found.items():
            if not name.startswith(tuple(plan["asked_again"])):
                self.asked.found.setdefault(name, value)

    def problem(self, budget: int) -> str:
        """Return why no fork can be made of this, or nothing."""
        tasks = len(list(Path("/proc/self/task").iterdir()))
        if tasks != 1:
            return f"it has {tasks} threads once it is loaded"
        if early := [name for name in self.ahead["alone"] if name in sys.modules]:
            return f"it has loaded {early[0]}, which is for each sandbox to load"
        if self.kept.lost:
            return f"it keeps a path in {self.kept.lost[0]}"
        size = resident_bytes()
        return f"it takes {size >> 20} MiB, more than it may" if size > budget else ""

    def serve(self, control: socket.socket) -> None:
        """Fork for each socket that comes."""
        while True:
            message, files, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            for number in files:
                if _fork() == 0:
                    control.close()
                    self._be_of_use(number)
                os.close(number)

    def _be_of_use(self, number: int) -> NoReturn:
        try:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            orders = socket.socket(fileno=number)
            orders.settimeout(_ORDER_SECONDS)
            message, files, _, _ = socket.recv_fds(orders, _MESSAGE_MAX, _FILES_MAX)
            if message == b"join":
                self._join(orders, files)
        finally:
            os._exit(_FAILED)

    def _join(self, holder: socket.socket, files: Sequence[int]) -> None:
        """Have a fork of this in a sandbox, as a child of the first process there."""
        told, talk = files
        with os.fdopen(told, "rb") as file:
            orders: dict[str, Any] = json.load(file)
        reason = self.asked.refusal(orders["env"])
        if not reason:
            try:
                holder.send(b"here")
                flags, numbers, _, _ = socket.recv_fds(holder, _MESSAGE_MAX, _FILES_MAX)
                joining.enter(int(flags), numbers)
                reason = self._give_away(holder, talk, orders)
            except (OSError, ValueError) as exc:
                reason = f"its namespaces cannot be joined: {exc}"
        holder.send(reason.encode()[:_MESSAGE_MAX] or b"joined")

    def _give_away(self, holder: socket.socket, talk: int, orders: dict[str, Any]) -> str:
        """Fork twice: when the first has ended, the second belongs to the first process there."""
        first = _fork()
        if first:
            _, status = os.waitpid(first, 0)
            return "no process can be made there" if status else ""
        try:
            if _fork() == 0:
                self._become_inside(holder, talk, orders)
            os._exit(0)
        finally:
            os._exit(_FAILED)

    def _become_inside(self, holder: socket.socket, talk: int, orders: dict[str, Any]) -> None:
        with _failing_alone():
            holder.close()
            hold(orders)
            joining.renounce(
                base64.b64decode(orders["filter"]), has_own_user=orders["has_own_user"]
            )
            parent = socket.socket(fileno=talk)
            parent.settimeout(_ORDER_SECONDS)
            parent.send(str(os.getpid()).encode())
            message, files, _, _ = socket.recv_fds(parent, _MESSAGE_MAX, _FILES_MAX)
            if not message or os.getppid() != 1:
                os._exit(_FAILED)
            os.setsid()
            out, err, *passed = files
            _stream(out, err)
            for number in passed:
                os.dup2(number, _PASSED)
            os.closerange(_PASSED + len(passed), FILES_AT_MOST)
            told = told_of([_PASSED] * len(passed))
            env = {**orders["env"], **told}
            self._run(orders, orders["argv"], env, umask=int(message.decode()))

    def _run(
        self, orders: dict[str, Any], argv: Sequence[str], env: Mapping[str, str], *, umask: int
    ) -> None:
        """Do what `python -m` does; never returns."""
        cwd = orders["cwd"]
        os.umask(umask)
        os.chdir(cwd)
        fresh.take_signals()
        env = {**env, **self.asked.made}
        self.kept.replace({**env, fresh.HERE: cwd})
        fresh.begin_anew(argv, env, mark=orders["mark"], moments=self.ahead["moments"])
        self.built.offer()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, Path(argv[0]).name.encode()[:15], 0, 0, 0)
        sys.path.insert(0, cwd)
        sys.argv = [self.program, *argv[3:]]
        code = 0
        try:
            runpy.run_module(self.program, run_name="__main__", alter_sys=True)
        except SystemExit as exc:
            code = _code_of(exc)
        except BaseException:  # noqa: BLE001  # as Python itself does in the end
            _complain()
            code = 1
        _finish(code)


def resident_bytes() -> int:
    """Return how much memory this process has that is not swapped out."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class _Throttle(MetaPathFinder):
    """Asked before each import, it pauses until somebody waits, and ends where nobody is left."""

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


def _parts(program: str) -> list[str]:
    """Return the modules that are executed by each fork itself."""
    spec = importlib.util.find_spec(program)
    if spec is None or spec.submodule_search_locations is None:
        return [program]
    return [name for part in _PARTS if importlib.util.find_spec(name := f"{program}.{part}")]


def _import_parts(name: str) -> None:
    """Import what a module imports at its top, and not the module itself, which does things."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Import):
            for one in node.names:
                importlib.import_module(one.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            module = importlib.import_module(node.module)
            for one in node.names:
                if not hasattr(module, one.name):
                    importlib.import_module(f"{node.module}.{one.name}")


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


@contextlib.contextmanager
def _failing_alone() -> Iterator[None]:
    """Let nothing that goes wrong go back to where a fork came from."""
    try:
        yield
    except BaseException:  # noqa: BLE001  # there is nobody else to hear of it
        _complain()
    finally:
        os._exit(_FAILED)


def _complain() -> None:
    kind, exc, trace = sys.exc_info()
    if kind is not None and exc is not None:
        sys.excepthook(kind, exc, trace)


def _stream(out: int, err: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(err, 2)


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


def _finish(code: int) -> NoReturn:
    """End as an interpreter does, without going back to what this was forked from."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  # as the interpreter
        atexit._run_exitfuncs()  # noqa: SLF001  # as the interpreter
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)
