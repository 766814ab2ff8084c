"""Starts the fork server, the process that has loaded the agent server, and lends its forks.

Each process backend has one, started at the first sandbox or some time after the server; its forks
are the agent servers of sandboxes, which do not need it afterwards. Only the fork receives the
orders of a sandbox. The fork server ends with the server, and is replaced if it has ended, has
grown too large, or the installed packages have changed.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import BackendUnavailable, CapacityExceeded, monotonic, new_id
from agentsvc.plugin import PACKAGE_DIR, Advice

from . import bubblewrap
from .files import ChildFiles, resident_bytes
from .programs.shim import SILENT, ZYGOTE
from .settings import ProcessConfig
from .threads import reach
from .users import Users

log = logging.getLogger(__name__)

ENDED: Final = "the zygote has ended"
"""Reason if a fork server ended while a fork was requested."""

_INSTALLED: Final = ("site-packages", "dist-packages")
_MESSAGE_MAX: Final = 4096
_FAILURES_MAX: Final = 3
_PAUSE_SECONDS: Final = 2.0
_LONGEST_PAUSE_SECONDS: Final = 600.0
_LONGEST_WAITS: Final = 3
"""Starts that may not load beside it wait this many times as long as the first."""
_NICE: Final = 10
_CONTROL: Final = 3
"""Descriptor number of its socket to the server."""
_NUMBER_MIN: Final = 10

type Fingerprint = tuple[tuple[str, int], ...]


class Confinement(msgspec.Struct, frozen=True, kw_only=True):
    """The isolation of the fork server."""

    program: str = ""
    """Path of bubblewrap."""
    readable: tuple[Path, ...] = ()
    users: Users = Users()
    """User ids, of which it gets one as long as it lives; without them it runs as the server's
    user, without rights outside of its own user namespace."""
    shares_network: bool = False
    """Whether it is in the host's network, as sandboxes may be: a fork could not join that later."""
    refusal: str = ""
    """Why there may be no fork server here."""


class ForkHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A socket to a fork that waits for its orders, or why there is none."""

    number: int = -1
    user: int = 0
    """The fork's user id, unless it is the server's own user."""
    space: int = -1
    """The user namespace of the fork, if it runs as the server's own user: it may enter the
    namespaces created within that."""
    zygote: int = 0
    """The pid of its fork server."""
    reason: str = ""

    def close(self) -> None:
        """Close the descriptors; a fork without orders ends."""
        for number in (self.number, self.space):
            if number >= 0:
                os.close(number)


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    ready: int = 0
    failed: str = ""


_message = msgspec.json.Decoder(_Message)


class Zygote:
    """Starts a fork server when it is needed, lends its forks, and replaces it."""

    def __init__(
        self, config: ProcessConfig, program: str, preload: str, env: Mapping[str, str]
    ) -> None:
        """Store the program, its preload module and its environment, which must hold no secrets."""
        self._config = config
        self._arguments = [str(config.zygote_bytes), program, preload]
        self._env = env
        self._run: _Run | None = None
        self._starting: asyncio.Future[_Run] | None = None
        self._failures = 0
        self._silences = 0
        """The number of consecutive forks without a response."""
        self._retry_at = 0.0
        self._reason = ""
        self._timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._ending: asyncio.Future[None] | None = None
        self._is_closed = False
        self._confinement = Confinement(refusal="the backend is not open")

    def confine(self, how: Confinement) -> None:
        """Set its isolation, before anything else; log a refusal."""
        self._confinement = how
        if how.refusal and self._config.zygote:
            log.warning(
                "fork server not used: each agent server imports its packages itself",
                extra={"reason": how.refusal},
            )

    def begin(self) -> None:
        """Schedule the load after the configured delay; a start that needs it loads it earlier."""
        if not self._refusal:
            self._start_after(self._config.zygote_delay_seconds)

    async def lend(self) -> ForkHandle:
        """Return a fork, loading a fork server if necessary, or the reason why there is none.

        Raises BackendUnavailable while it is better to wait: agent servers loaded beside it would
        share the CPUs with it, and be ready later than its forks.
        """
        if self._refusal:
            return ForkHandle(reason=self._refusal)
        await self._drop_outdated()
        if self._run is None and self._may_start():
            await asyncio.wait([self._start()])
        run = self._run
        if run is None:
            return ForkHandle(reason=self._reason)
        run.hurry()
        self._restart_idle_timer()
        try:
            async with asyncio.timeout(self._config.zygote_seconds):
                await run.settled.wait()
        except TimeoutError:
            if not run.may_start_without(_LONGEST_WAITS * self._config.zygote_seconds):
                raise BackendUnavailable("The fork server is still being loaded") from None
            return ForkHandle(reason="the zygote is still being loaded")
        return run.fork() or ForkHandle(reason=self._reason or ENDED)

    @property
    def _refusal(self) -> str:
        """The reason why there can be no fork server, or an empty string."""
        is_wanted = self._config.zygote
        return self._confinement.refusal if is_wanted else "the configuration has no zygote"

    def describe(self) -> str:
        """Describe the state of the fork server."""
        if not self._config.zygote:
            return "off"
        if self._confinement.refusal:
            return f"none: {self._confinement.refusal}"
        if self._run is None:
            return self._reason or "not loaded yet"
        return f"pid {self._run.pid}" if self._run.is_ready else "being loaded"

    def advice(self) -> Iterator[Advice]:
        """Report why there can be no fork server although it is configured."""
        if self._config.zygote and self._confinement.refusal:
            text = f"{self.describe()}: agents start some seconds slower"
            yield Advice(subject="fork server", text=text)

    async def close(self) -> None:
        """End the fork server; its forks keep running."""
        self._is_closed = True
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        for under_way in (self._starting, self._ending):
            if under_way is not None:
                await asyncio.wait([under_way])
        if self._run is not None:
            await self._end_run(self._run)

    async def _drop_outdated(self) -> None:
        """End a fork server that is too large or outdated."""
        run = self._run
        if run is None:
            return
        made_of, size = await reach(lambda: (fingerprint(), resident_bytes(run.pid)))
        if made_of != run.made_of:
            self._failures = 0
            await self._end_run(run)
        elif size > self._config.zygote_bytes:
            await self._end_run(run)

    def _may_start(self) -> bool:
        is_wanted = self._failures < _FAILURES_MAX and monotonic() >= self._retry_at
        return not self._is_closed and is_wanted

    def _start(self) -> asyncio.Future["_Run"]:
        if self._starting is None:
            loop = asyncio.get_running_loop()
            self._starting = loop.run_in_executor(
                None, _spawn, self._confinement, self._arguments, self._env
            )
            self._starting.add_done_callback(self._on_started)
        return self._starting

    def _on_started(self, started: asyncio.Future["_Run"]) -> None:
        self._starting = None
        try:
            run = started.result()
        except (OSError, CapacityExceeded) as exc:
            # The machine may only be full for a while: a later start retries.
            self._retry_at = monotonic() + self._config.zygote_delay_seconds
            self._reason = f"the zygote cannot be started: {exc}"
            return
        self._run = run
        asyncio.get_running_loop().add_reader(run.number, self._on_message, run)

    def _on_message(self, run: "_Run") -> None:
        message = run.read_message()
        if message is not None and message.ready:
            self._failures, self._reason = 0, ""
            run.find()
            run.set_niceness(0)
            log.info("fork server ready", extra={"pid": run.pid, "duration_ms": run.age_ms()})
            run.is_ready = True
            self._restart_idle_timer()
            run.settled.set()
            return
        self._reason = (message.failed if message else "") or ENDED
        self._failures += 1
        log.warning("fork server ended", extra={"pid": run.pid, "reason": self._reason})
        self._detach(run)
        run.end()
        if self._may_start():
            self._start_after(_PAUSE_SECONDS * 2**self._failures)

    def _start_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start_if_none)

    def _restart_idle_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if seconds := self._config.zygote_idle_seconds:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(seconds, self._end_idle)

    def _end_idle(self) -> None:
        run = self._run
        if run is None or not run.is_ready:
            return
        self._reason = f"ended after {self._config.zygote_idle_seconds:g} s without a start"
        log.info("fork server ended", extra={"pid": run.pid, "reason": self._reason})
        self._retire(run)

    def note_start(self, pid: int, how: str) -> None:
        """Record how a sandbox with a fork of ours was started.

        If the fork did not respond, its fork server is ended, unless that was replaced, and another
        is loaded after a delay: each such start loses the time of the timeout.
        """
        run = self._run
        if how == ZYGOTE:
            self._silences = 0
        if how != SILENT or run is None or run.pid != pid:
            return
        self._silences = min(self._silences + 1, 20)
        pause = min(_PAUSE_SECONDS * (2**self._silences - 2), _LONGEST_PAUSE_SECONDS)
        self._retry_at = monotonic() + pause
        self._reason = SILENT
        log.warning("fork server ended", extra={"pid": run.pid, "reason": self._reason})
        self._retire(run)
        self._start_after(max(pause, _PAUSE_SECONDS))

    def _retire(self, run: "_Run") -> None:
        self._detach(run)
        self._ending = asyncio.get_running_loop().run_in_executor(None, run.end)

    def _detach(self, run: "_Run") -> None:
        self._run = None
        asyncio.get_running_loop().remove_reader(run.number)
        # Not in the thread that ends it: waiters wait in the event loop.
        run.is_ready = False
        run.settled.set()

    def _start_if_none(self) -> None:
        if self._run is None and self._may_start():
            self._starting = self._start()

    async def _end_run(self, run: "_Run") -> None:
        if self._run is run:
            self._detach(run)
            await reach(run.end)


class _Run:
    """One fork server process, from its start to its end."""

    def __init__(
        self,
        holder: int,
        number: int,
        made_of: Fingerprint,
        user: int,
        release_user: Callable[[], None],
    ) -> None:
        """Store its user id outside, 0 for the server's own, and the callback that releases it."""
        self.pid = self._holder = holder
        self._user, self._release_user = user, release_user
        self.number = number
        self.made_of = made_of
        self.is_ready = False
        self._space = -1
        """Its user namespace, if it runs as the server's own user."""
        self.settled = asyncio.Event()
        self._is_hurried = False
        self._has_started_without = False
        self._began = monotonic()
        # A backend that is never closed must not leave it behind.
        self._closing = [weakref.finalize(self, os.close, number)]

    def age_ms(self) -> int:
        """Return its age in milliseconds."""
        return int((monotonic() - self._began) * 1000)

    def find(self) -> None:
        """Find the fork server's pid without asking it: it is the only child of bubblewrap."""
        self.pid = self._holder
        with contextlib.suppress(OSError, ValueError):
            found = Path(f"/proc/{self._holder}/task/{self._holder}/children").read_text()
            self.pid = int(found)
            if not self._user and self._space < 0:
                # It cannot have left the namespace in which it was started.
                self._space = os.open(f"/proc/{self.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
                self._closing.append(weakref.finalize(self, os.close, self._space))

    def set_niceness(self, nice: int) -> None:
        """Set its niceness, at least the server's; only as root, who can lower it again."""
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                importance = max(os.getpriority(os.PRIO_PROCESS, 0), nice)
                os.setpriority(os.PRIO_PGRP, self._holder, importance)

    def read_message(self) -> _Message | None:
        """Return its message, or None if it has ended."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            # If it ended with unread input, the first read fails with a reset; its message is still
            # there.
            with contextlib.suppress(ConnectionResetError):
                return _message.decode(os.read(self.number, _MESSAGE_MAX))
            return _message.decode(os.read(self.number, _MESSAGE_MAX))
        return None

    def hurry(self) -> None:
        """Tell it once that a start waits for it, unless it has finished loading."""
        if not self._is_hurried and not self.settled.is_set():
            self._is_hurried = True
            self.set_niceness(0)
            with contextlib.suppress(OSError):  # it has ended, which `read_message` reports
                os.write(self.number, b"h")

    def may_start_without(self, seconds: float) -> bool:
        """Return whether a start may do without it: the first one, and all once it is older."""
        is_first, self._has_started_without = not self._has_started_without, True
        return is_first or self.age_ms() > seconds * 1000

    def fork(self) -> ForkHandle | None:
        """Return a socket to a new fork, or None if there can be none."""
        if not self.is_ready:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, socket.socket(fileno=os.dup(self.number)) as control:
            try:
                socket.send_fds(control, [b"f"], [theirs.fileno()])
            except OSError:
                return None
            space = -1 if self._space < 0 else _duplicate(self._space)
            number = _duplicate(ours.fileno())
            return ForkHandle(number=number, user=self._user, space=space, zygote=self.pid)

    def end(self) -> None:
        """Kill it and wait until it is gone; does nothing if it is."""
        self.find()
        for close in self._closing:
            close()
        with contextlib.suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self._holder, 0)
        self._release_user()


def fingerprint() -> Fingerprint:
    """Return a value that changes when a package is installed, replaced or removed."""
    # Other directories of the search path, such as the working directory, change all the time.
    installed = [path for path in map(Path, sys.path) if path.name in _INSTALLED]
    here = Path(__file__).parent
    found = []
    for path in dict.fromkeys((*installed, here, here / "programs")):
        with contextlib.suppress(OSError):
            found.append((str(path), path.stat().st_mtime_ns))
    return tuple(found)


def _spawn(how: Confinement, arguments: Sequence[str], env: Mapping[str, str]) -> _Run:
    made_of, name = fingerprint(), f"zygote {new_id()}"
    user, release_user = how.users.assign(name, 0), partial(how.users.release, name)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, ChildFiles() as files:
        try:
            python = files.put("python", _copy_of_python())
            command = [sys.executable, "-c", _code(), str(_CONTROL), *arguments]
            command = _confined(how, user, files, [str(user), str(python), *command])
            pid = _start(how.program, command, env, theirs.fileno(), files)
        except BaseException:
            release_user()
            raise
        run = _Run(pid, ours.detach(), made_of, user, release_user)
    run.set_niceness(_NICE)
    return run


def _duplicate(number: int) -> int:
    """Duplicate a descriptor to a number above those that a child gets for other files."""
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, _NUMBER_MIN)


def _code() -> str:
    package = str(PACKAGE_DIR.parent)
    found = f"import sys\nsys.path += [{package!r}] * ({package!r} not in sys.path)\n"
    return found + bubblewrap.code_of("warm")


def _confined(how: Confinement, user: int, files: ChildFiles, command: list[str]) -> list[str]:
    """Return the command that runs another in its own namespaces, as a user without rights.

    bubblewrap creates the namespaces, and `joining` drops the rights.
    """
    for name, data in bubblewrap.fork_server_files(user).items():
        files.add(name, data)
    arguments = bubblewrap.fork_server_arguments(
        how.readable,
        shares_network=how.shares_network,
        has_own_user=bool(user),
    )
    first = [how.program, "--args", str(files.add_arguments(arguments))]
    before = bubblewrap.running("joining")
    return [*first, *before, *command]


def _start(
    path: str, command: list[str], env: Mapping[str, str], control: int, files: ChildFiles
) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            path,
            command,
            env,
            file_actions=[
                *((os.POSIX_SPAWN_DUP2, number, number) for number in files.numbers()),
                *((os.POSIX_SPAWN_DUP2, null, target) for target in range(_CONTROL)),
                (os.POSIX_SPAWN_DUP2, control, _CONTROL),
            ],
            setsid=True,
        )
    finally:
        os.close(null)


def _copy_of_python() -> int:
    """Return a sealed copy of Python, safe from writes through /proc/PID/exe.

    A fork that has entered a sandbox still links to its executable there, and that link bypasses
    the sandbox's own mounts.
    """
    number = os.memfd_create("python", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with Path(sys.executable).open("rb") as file:
            while os.sendfile(number, file.fileno(), None, 1 << 30):
                pass
        seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(number, fcntl.F_ADD_SEALS, seals)
    except OSError:
        os.close(number)
        raise
    return number
