"""Files of a process sandbox: directories, record, state, log.

All functions block for a moment; call them from a thread.
"""

import contextlib
import errno
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from agentsvc.base import OrderRejected, copy_to, is_sandbox_id, now
from agentsvc.plugin import Isolation, Limits, LogLine, Network, Order, Port, remove_directory

from .files import read_whole, write_anew
from .reclaiming import Memory
from .tree import MARK, Identity
from .users import give

OLD_DOOR: Final = "proxy"
"""What the ways out of sandboxes are called that started before they had names of their own."""

SOCKET_PATH_MAX: Final = 107
"""Bytes a unix socket's path may have; the kernel's limit."""

_LEAVING = "leaving"
_TEMP_PREFIX = "asvc-"
_TEMP_NAME = re.compile(rf"{_TEMP_PREFIX}[0-9a-f]{{8}}")
_LONGEST_SOCKET = "/".join(("", "tmp", "tmux-4294967295", "openhands-" + 32 * "0"))
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
"""What a sandbox that ran before may have made of a directory of its own."""
_BLOCK = 65536
_MAX_LINES = 50
_NO_REMARK = re.compile(
    r'- \\?"[A-Z]{3,7}\s|HTTP/\d[.\d]*\\?" \d{3}\b|Process exiting via atexit|Server terminated: SystemExit'
    r"|Application (startup failed|shutdown complete)|Waiting for application shutdown"
)
"""A request in an access log, or its beginning; and what an agent server says at each end."""
_REST = " " * 8
"""What goes before the rest of a line that was broken because it is long."""


class OutboundNetwork(StrEnum):
    """How a sandbox whose network is open reaches anything."""

    HOST = "host"
    """It is in the machine's network."""
    SLIRP = "slirp"
    """slirp4netns carries what it sends out of a network namespace of its own."""
    PROXY = "proxy"
    """It has such a namespace, and the server's proxy is the only way out of it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; written before anything is started. No secrets."""

    instance_id: str
    sandbox_id: str
    created_at: datetime
    temp: str
    working_dir: str
    ports: tuple[Port, ...]
    network: Network = Network.OPEN
    allow_hosts: tuple[str, ...] = ()
    reaches: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    callback: str = ""
    """Host and port at which it was told that the server is."""
    limits: Limits = Limits()
    user: int = 0
    """Who it is outside, and whose its files are; 0 for the server's user."""
    has_own_network: bool = False
    """Whether it has a network of its own although that is open."""
    is_proxied: bool = False
    """Whether the proxy is the only way out of that."""
    door: str = OLD_DOOR
    """What its way out is called, which nothing that runs inside is told."""
    has_fixed_paths: bool = False
    """Whether its workspace has a path inside that is the same in all sandboxes."""

    @property
    def way_out(self) -> OutboundNetwork | None:
        """How it gets out if its network is open, else None."""
        if self.network is not Network.OPEN:
            return None
        if not self.has_own_network:
            return OutboundNetwork.HOST
        return OutboundNetwork.PROXY if self.is_proxied else OutboundNetwork.SLIRP

    @property
    def shares_network(self) -> bool:
        """Whether it is in the network of the machine."""
        return self.way_out is OutboundNetwork.HOST

    @property
    def has_proxy(self) -> bool:
        """Whether its programs are sent to the proxy."""
        return self.way_out in (None, OutboundNetwork.PROXY)

    def connected(self, way_out: OutboundNetwork, callback: str) -> "Record":
        """Return the record for a start with that way out, if its network is open."""
        return msgspec.structs.replace(
            self,
            callback=callback,
            has_own_network=self.network is Network.OPEN and way_out is not OutboundNetwork.HOST,
            is_proxied=self.network is Network.OPEN and way_out is OutboundNetwork.PROXY,
            door=secrets.token_hex(16) if self.door == OLD_DOOR else self.door,
        )


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How the command ended."""

    code: int | None
    reason: str
    at: float
    cause: str = ""
    """A Cause, where a limit was one."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What the shim wrote about itself."""

    version: int
    boot: str
    shim: Identity
    command: Identity | None
    ports: dict[str, int]
    cgroup: str
    exit: Exit | None
    isolation: Isolation = Isolation.NONE
    sockets: dict[str, str] = {}
    """Where ports are reached from outside, if not at their numbers."""
    joined: tuple[str, ...] = ()
    """The control groups that limit it."""
    kills: int = 0
    """How many of its processes were ended for want of memory."""
    disk_bytes: int | None = None
    """What its files took when they were last counted."""
    started_by: str = ""
    """`zygote`, or why it was started without one; empty where that was never possible."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """That the sandbox is paused, or being paused; `kept` were stopped before."""

    is_done: bool
    kept: tuple[Identity, ...] = ()
    ends: bool = False
    """Its processes are not stopped but ended."""
    memory: Memory | None = None
    """Where its memory was when it had been pushed out."""


_record = msgspec.json.Decoder(Record)
_state = msgspec.json.Decoder(State)
_pause = msgspec.json.Decoder(Pause)


class SandboxDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of one sandbox and what is in it."""

    directory: Path

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id, which names the directory."""
        return self.directory.name

    @property
    def workspace(self) -> Path:
        """Where the agent works."""
        return self.directory / "workspace"

    @property
    def home(self) -> Path:
        """The command's HOME."""
        return self.directory / "home"

    @property
    def agent(self) -> Path:
        """The command's own directory, so that its files are not among the agent's."""
        return self.directory / "agent"

    @property
    def doors(self) -> Path:
        """The sockets of this server that lead out, for a sandbox without another network."""
        return self.directory / "doors"

    @property
    def checkpoints(self) -> Path:
        """The copies of its files to which it can go back."""
        return self.directory / "checkpoints"

    @property
    def log(self) -> Path:
        """What the command wrote."""
        return self.directory / "log"

    def exists(self) -> bool:
        """Say whether there is such a directory; OSError if that cannot be found out."""
        # The parent is looked at, too: an unmounted disk is not a removed sandbox.
        self.directory.parent.stat()
        try:
            self.directory.stat()
        except FileNotFoundError:
            return False
        return True

    def make(self, record: Record) -> None:
        """Write the record, unless it is there as it is, and make the directories."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if record != self.read_record():
            self._write("record.json", record)
        for directory in (self.home, self.agent, self.workspace):
            directory.mkdir(mode=0o700, exist_ok=True)
        # A sandbox that ran before may have put a link there, to where nobody wants a directory.
        working_dir = self.workspace / record.working_dir
        if _real(working_dir).is_relative_to(_real(self.workspace)):
            try:
                working_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                if exc.errno not in _IN_THE_WAY:
                    raise

    def hand_over(self, record: Record) -> None:
        """Make its files those of its user.

        For root alone, and while nothing runs in the sandbox.
        """
        user = record.user
        give((self.home, self.agent, self.workspace), user)
        working_dir = self.workspace / record.working_dir
        # Made anew, it is the server's. What a sandbox put there instead is left alone.
        expected = _real(self.workspace) / record.working_dir
        if working_dir.is_dir() and _real(working_dir) == expected:
            for path in (working_dir, *working_dir.parents):
                if path.is_relative_to(self.workspace) and path.lstat().st_uid != user:
                    os.chown(path, user, user, follow_symlinks=False)

    def read_record(self) -> Record | None:
        """Return the record, or None if there is none that can be read."""
        return self._read("record.json", _record)

    def read_state(self) -> State | None:
        """Return what the shim wrote, or None if it has not yet."""
        return self._read("state.json", _state)

    def read_pause(self) -> Pause | None:
        """Return the pause mark, or None if the sandbox is to run."""
        return self._read("pause.json", _pause)

    def write_pause(self, pause: Pause) -> None:
        """Set the pause mark."""
        self._write("pause.json", pause)

    def clear_pause(self) -> None:
        """Take the pause mark away."""
        (self.directory / "pause.json").unlink(missing_ok=True)

    def forget_run(self, *, was_stopped: bool) -> None:
        """Forget a run that has ended, so that there can be another; until then it is as stopped."""
        if was_stopped:
            self.write_pause(Pause(is_done=True, ends=True))
        else:
            self.clear_pause()
        (self.directory / "state.json").unlink(missing_ok=True)

    def make_control_token(self) -> str:
        """Return what whoever asks the shim for a command has to show, and make it if need be.

        It stays the same: a shim may run already that has not written its state yet.
        """
        if token := self.read_control_token():
            return token
        token = secrets.token_hex(32)
        write_anew(self.directory / "control-token", token.encode())
        return token

    def read_control_token(self) -> str:
        """Return what `make_control_token` made; empty for a sandbox of a version without it."""
        with contextlib.suppress(FileNotFoundError):
            return read_whole(f"{self.directory}/control-token").decode()
        return ""

    def last_line(self) -> str:
        """Return the last line of output that says something, shortened.

        What an agent server notes of each request, and last of all, says nothing of why it ended.
        """
        # What cannot be read for a remark must not keep a sandbox from being looked at.
        with contextlib.suppress(OSError):
            return _last_remark([line.text for line in LogFile(self.log).tail(_MAX_LINES)])[:300]
        return ""

    def shim_error(self) -> str:
        """Return what the shim said when it failed."""
        with contextlib.suppress(OSError):
            return (self.directory / "shim.log").read_text(errors="replace")[-2000:].strip()
        return ""

    def is_to_go(self) -> bool:
        """Say whether its files are about to be removed."""
        return (self.directory / _LEAVING).exists()

    def leave(self) -> None:
        """Note that it is about to be removed, so that nobody takes the rest of its files for all."""
        with contextlib.suppress(FileNotFoundError):
            (self.directory / _LEAVING).touch(mode=0o600)

    def remove(self) -> None:
        """Remove the directory and all in it; fine if it does not exist."""
        self.leave()
        remove_directory(self.directory)

    def _read[T](self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        try:
            return decoder.decode(read_whole(f"{self.directory}/{name}"))
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write(self, name: str, value: Record | Pause) -> None:
        write_anew(self.directory / name, msgspec.json.encode(value))


class LogFile:
    """Reads the log a shim writes; knows how far it has read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0

    def tail(self, count: int) -> list[LogLine]:
        """Return the last lines, oldest first, and go on from there."""
        data = b""
        for path in (self.path, self.path.with_suffix(".1")):
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                if path == self.path:
                    self._inode = path.stat().st_ino
                    self._offset = file.seek(0, 2)
                data = _read_back(file, count - data.count(b"\n")) + data
        return _lines(data)[-count:] if count > 0 else []

    def more(self) -> list[LogLine]:
        """Return the lines written since the last call."""
        data = b""
        for path in (self.path.with_suffix(".1"), self.path):
            with contextlib.suppress(FileNotFoundError):
                data += self._rest(path)
        return _lines(data)

    def _rest(self, path: Path) -> bytes:
        with path.open("rb") as file:
            inode = path.stat().st_ino
            if path != self.path and inode != self._inode:
                return b""
            file.seek(self._offset if inode == self._inode else 0)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            if path == self.path:
                self._offset = len(whole) + (self._offset if inode == self._inode else 0)
                self._inode = inode
            return whole


def find_folder(state_dir: Path, sandbox_id: str) -> SandboxDirectory | None:
    """Return where a sandbox of that id is or would be, or None if no id looks like that."""
    if not is_sandbox_id(sandbox_id):
        return None
    return SandboxDirectory(directory=state_dir / sandbox_id)


def require_folder(state_dir: Path, sandbox_id: str) -> SandboxDirectory:
    """Return where a sandbox of that id is or would be; raises OrderRejected if no id looks like that."""
    if (folder := find_folder(state_dir, sandbox_id)) is None:
        raise OrderRejected(f"The id {sandbox_id!r} cannot name a directory")
    return folder


def list_folders(state_dir: Path, instance_id: str) -> Iterator[tuple[SandboxDirectory, datetime]]:
    """Yield the sandboxes in a directory that are this instance's, and when they were made."""
    for directory in state_dir.iterdir():
        folder = find_folder(state_dir, directory.name)
        if folder is None:
            continue
        record = folder.read_record()
        if record is None:
            with contextlib.suppress(FileNotFoundError):  # it has been removed meanwhile
                yield folder, datetime.fromtimestamp(directory.stat().st_mtime, UTC)
        elif record.instance_id == instance_id:
            yield folder, record.created_at


def mark_of(instance_id: str, sandbox_id: str) -> str:
    """Return the mark all processes and the temporary directory of a sandbox carry."""
    return f"{instance_id}/{sandbox_id}"


def temp_root(configured: str) -> Path:
    """Return where temporary directories go: short enough for the sockets made in them."""
    root = Path(configured or tempfile.gettempdir()).resolve()
    longest = len(str(root / _TEMP_PREFIX)) + 8 + len(_LONGEST_SOCKET)
    return root if longest <= SOCKET_PATH_MAX else Path("/tmp")  # noqa: S108  # mode 0700 below


def new_temp_name(root: Path) -> str:
    """Return a path for a temporary directory that does not exist yet."""
    return str(root / f"{_TEMP_PREFIX}{secrets.token_hex(4)}")


def is_temp_name(path: Path) -> bool:
    """Whether a path may be that of a temporary directory of ours, wherever it was made."""
    return path.is_absolute() and _TEMP_NAME.fullmatch(path.name) is not None


def make_temp(path: str, mark: str, user: int = 0) -> Path:
    """Make a temporary directory that says whose it is; fine if it is there.

    With a user, what is in it is that user's; only root may say so. Returns the part that is the sandbox's own; the rest is out of the way of its file names.
    """
    top = Path(path)
    top.mkdir(mode=0o700, exist_ok=True)
    if temp_mark(top) == "":
        (top / MARK).write_text(mark)
    if temp_mark(top) != mark:
        raise FileExistsError(path)
    inner = top / "tmp"
    inner.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        give([inner], user)
    return inner


def temp_mark(path: Path) -> str | None:
    """Return whose a temporary directory is; empty if not yet known, None if none of ours."""
    try:
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return None
        # A sandbox can write here: what is not text is a mark of nobody, and must not raise.
        return (path / MARK).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return "" if path.is_dir() else None
    except OSError:
        return None


def list_temps(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the temporary directories of any sandbox and whose they are."""
    for path in root.glob(f"{_TEMP_PREFIX}*"):
        if mark := temp_mark(path):
            yield path, mark


def remove_temps(mark: str, root: Path, known: str) -> None:
    """Remove the temporary directories of a sandbox, also a known one that has no mark yet."""
    found = [path for path, owner in list_temps(root) if owner == mark]
    if known and temp_mark(Path(known)) in (mark, ""):
        found.append(Path(known))
    for path in found:
        remove_directory(path)


def new_record(instance_id: str, order: Order, root: Path) -> Record:
    """Return the record of a sandbox that is about to be made, with its temporary directory in `root`."""
    temp = new_temp_name(root)
    return copy_to(Record, order, instance_id=instance_id, created_at=now(), temp=temp)


def _real(path: Path) -> Path:
    # `resolve` raises RuntimeError for a link to itself.
    return Path(os.path.realpath(path))


def _last_remark(lines: list[str]) -> str:
    found, is_noise = "", True
    for line in lines:
        if not line.strip():
            continue
        if not line.startswith(_REST):
            is_noise = _NO_REMARK.search(line) is not None
        found = found if is_noise else line
    return found.strip()


def _read_back(file: BinaryIO, lines: int) -> bytes:
    position = file.seek(0, 2)
    data = b""
    while position > 0 and data.count(b"\n") <= lines:
        step = min(_BLOCK, position)
        position = file.seek(position - step)
        data = file.read(step) + data
    return data[data.find(b"\n") + 1 :] if position > 0 else data


def _lines(data: bytes) -> list[LogLine]:
    found = []
    # Not `splitlines`: output may have carriage returns.
    for raw in data.split(b"\n"):
        at, _, rest = raw.partition(b" ")
        stream, _, text = rest.partition(b" ")
        with contextlib.suppress(ValueError, OverflowError, OSError):
            found.append(
                LogLine(
                    at=datetime.fromtimestamp(float(at), UTC),
                    stream="stderr" if stream == b"e" else "stdout",
                    text=text.removesuffix(b"\r").decode(errors="replace"),
                )
            )
    return found
