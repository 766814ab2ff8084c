"""Files of a process sandbox: directories, record, state, log.

All functions block briefly; call them from a thread.
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

from .files import read_whole, replace_file
from .reclaiming import Memory
from .tree import MARK, Identity
from .users import give

OLD_DOOR: Final = "proxy"
"""Name of the proxy socket in sandboxes of versions before each had its own."""

SOCKET_PATH_MAX: Final = 107
"""The kernel's limit for the path of a Unix socket, in bytes."""

_LEAVING = "leaving"
_TEMP_PREFIX = "asvc-"
_TEMP_NAME = re.compile(rf"{_TEMP_PREFIX}[0-9a-f]{{8}}")
_LONGEST_SOCKET = "/".join(("", "tmp", "tmux-4294967295", "openhands-" + 32 * "0"))
_REPLACED_ERRORS = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
"""Errors if an earlier run of the sandbox has replaced one of its directories."""
_BLOCK = 65536
_MAX_LINES = 50
_NOISE = re.compile(
    r'- \\?"[A-Z]{3,7}\s|HTTP/\d[.\d]*\\?" \d{3}\b|Process exiting via atexit|Server terminated: SystemExit'
    r"|Application (startup failed|shutdown complete)|Waiting for application shutdown"
)
"""Log lines that say nothing about the end: requests of an access log, complete or not, and the
agent server's usual last lines."""
_CONTINUATION = " " * 8
"""Indentation of the continuation of a wrapped line."""


class OutboundNetwork(StrEnum):
    """The outbound network of an open sandbox."""

    HOST = "host"
    """It shares the host's network."""
    SLIRP = "slirp"
    """It has a network namespace of its own, and slirp4netns forwards its traffic."""
    PROXY = "proxy"
    """It has a network namespace of its own, and only the server's proxy leads out of it."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox as ordered; written before anything is started. Without secrets."""

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
    """Host and port of the server that the sandbox was given."""
    limits: Limits = Limits()
    user: int = 0
    """The user id outside, and the owner of its files; 0 for the server's user."""
    has_own_network: bool = False
    """Whether an open sandbox has a network namespace of its own."""
    is_proxied: bool = False
    """Whether the proxy is the only way out of that namespace."""
    door: str = OLD_DOOR
    """Name of its proxy socket, which is kept secret from processes inside."""
    has_fixed_paths: bool = False
    """Whether its workspace is mounted at the path that is the same in all sandboxes."""

    @property
    def way_out(self) -> OutboundNetwork | None:
        """The outbound network if the sandbox is open, otherwise None."""
        if self.network is not Network.OPEN:
            return None
        if not self.has_own_network:
            return OutboundNetwork.HOST
        return OutboundNetwork.PROXY if self.is_proxied else OutboundNetwork.SLIRP

    @property
    def shares_network(self) -> bool:
        """Whether it shares the host's network."""
        return self.way_out is OutboundNetwork.HOST

    @property
    def has_proxy(self) -> bool:
        """Whether its programs use the proxy."""
        return self.way_out in (None, OutboundNetwork.PROXY)

    def connected(self, way_out: OutboundNetwork, callback: str) -> "Record":
        """Return the record for a start with this outbound network, if the sandbox is open."""
        return msgspec.structs.replace(
            self,
            callback=callback,
            has_own_network=self.network is Network.OPEN and way_out is not OutboundNetwork.HOST,
            is_proxied=self.network is Network.OPEN and way_out is OutboundNetwork.PROXY,
            door=secrets.token_hex(16) if self.door == OLD_DOOR else self.door,
        )


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The exit of the command."""

    code: int | None
    reason: str
    at: float
    cause: str = ""
    """A Cause, if a limit ended it."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The shim's state file."""

    version: int
    boot: str
    shim: Identity
    command: Identity | None
    ports: dict[str, int]
    cgroup: str
    exit: Exit | None
    isolation: Isolation = Isolation.NONE
    sockets: dict[str, str] = {}
    """Unix sockets of the ports, by name; empty if the ports are reached by number."""
    joined: tuple[str, ...] = ()
    """The control groups that limit it."""
    kills: int = 0
    """The number of its processes that the OOM killer ended."""
    disk_bytes: int | None = None
    """The size of its files at the last count."""
    started_by: str = ""
    """`zygote`, or why it was started without one; empty if a zygote was never possible."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """The pause mark: the sandbox is paused or being paused; `kept` were stopped before."""

    is_done: bool
    kept: tuple[Identity, ...] = ()
    ends: bool = False
    """Its processes are ended instead of stopped."""
    memory: Memory | None = None
    """Where its memory was after it had been pushed out."""


_record = msgspec.json.Decoder(Record)
_state = msgspec.json.Decoder(State)
_pause = msgspec.json.Decoder(Pause)


class SandboxDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """The directory of one sandbox and its files."""

    directory: Path

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id, which names the directory."""
        return self.directory.name

    @property
    def workspace(self) -> Path:
        """The agent's workspace."""
        return self.directory / "workspace"

    @property
    def home(self) -> Path:
        """The command's HOME."""
        return self.directory / "home"

    @property
    def agent(self) -> Path:
        """The command's working directory, which keeps its files apart from the agent's."""
        return self.directory / "agent"

    @property
    def doors(self) -> Path:
        """The directory of the proxy sockets, for a sandbox without the host's network."""
        return self.directory / "doors"

    @property
    def checkpoints(self) -> Path:
        """The sandbox's checkpoints."""
        return self.directory / "checkpoints"

    @property
    def log(self) -> Path:
        """The output of the command."""
        return self.directory / "log"

    def exists(self) -> bool:
        """Return whether the directory exists; raises OSError if that cannot be determined."""
        # Check the parent, too: a missing disk is not a removed sandbox.
        self.directory.parent.stat()
        try:
            self.directory.stat()
        except FileNotFoundError:
            return False
        return True

    def make(self, record: Record) -> None:
        """Write the record if it has changed, and create the directories."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        if record != self.read_record():
            self._write("record.json", record)
        for directory in (self.home, self.agent, self.workspace):
            directory.mkdir(mode=0o700, exist_ok=True)
        # An earlier run may have put a link there that leads outside of the workspace.
        working_dir = self.workspace / record.working_dir
        if _real_path(working_dir).is_relative_to(_real_path(self.workspace)):
            try:
                working_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                if exc.errno not in _REPLACED_ERRORS:
                    raise

    def hand_over(self, record: Record) -> None:
        """Give its files to its user.

        For root only, and while nothing runs in the sandbox.
        """
        user = record.user
        give((self.home, self.agent, self.workspace), user)
        working_dir = self.workspace / record.working_dir
        # A new directory belongs to the server. Anything else that a sandbox put there is skipped.
        expected = _real_path(self.workspace) / record.working_dir
        if working_dir.is_dir() and _real_path(working_dir) == expected:
            for path in (working_dir, *working_dir.parents):
                if path.is_relative_to(self.workspace) and path.lstat().st_uid != user:
                    os.chown(path, user, user, follow_symlinks=False)

    def read_record(self) -> Record | None:
        """Return the record, or None if it is missing or unreadable."""
        return self._read("record.json", _record)

    def read_state(self) -> State | None:
        """Return the shim's state, or None if it has not written one yet."""
        return self._read("state.json", _state)

    def read_pause(self) -> Pause | None:
        """Return the pause mark, or None if the sandbox should run."""
        return self._read("pause.json", _pause)

    def write_pause(self, pause: Pause) -> None:
        """Set the pause mark."""
        self._write("pause.json", pause)

    def clear_pause(self) -> None:
        """Remove the pause mark."""
        (self.directory / "pause.json").unlink(missing_ok=True)

    def forget_run(self, *, was_stopped: bool) -> None:
        """Discard an ended run's state so that it can start again; keep it stopped if it was."""
        if was_stopped:
            self.write_pause(Pause(is_done=True, ends=True))
        else:
            self.clear_pause()
        (self.directory / "state.json").unlink(missing_ok=True)

    def make_control_token(self) -> str:
        """Return the token that authorizes commands to the shim; create it on first use.

        It stays the same: a shim that has not written its state yet may use it already.
        """
        if token := self.read_control_token():
            return token
        token = secrets.token_hex(32)
        replace_file(self.directory / "control-token", token.encode())
        return token

    def read_control_token(self) -> str:
        """Return the control token, or "" for a sandbox of a version without one."""
        with contextlib.suppress(FileNotFoundError):
            return read_whole(f"{self.directory}/control-token").decode()
        return ""

    def last_line(self) -> str:
        """Return the last significant line of output, shortened.

        Access log lines and the agent server's usual last lines are skipped.
        """
        # An unreadable log must not make an inspection fail.
        with contextlib.suppress(OSError):
            return _last_message([line.text for line in LogFile(self.log).tail(_MAX_LINES)])[:300]
        return ""

    def shim_error(self) -> str:
        """Return the shim's error output."""
        with contextlib.suppress(OSError):
            return (self.directory / "shim.log").read_text(errors="replace")[-2000:].strip()
        return ""

    def is_being_removed(self) -> bool:
        """Return whether its files are about to be removed."""
        return (self.directory / _LEAVING).exists()

    def leave(self) -> None:
        """Mark it as about to be removed, so that nobody copies the remaining files."""
        with contextlib.suppress(FileNotFoundError):
            (self.directory / _LEAVING).touch(mode=0o600)

    def remove(self) -> None:
        """Remove the directory recursively; does nothing if it does not exist."""
        self.leave()
        remove_directory(self.directory)

    def _read[T](self, name: str, decoder: msgspec.json.Decoder[T]) -> T | None:
        try:
            return decoder.decode(read_whole(f"{self.directory}/{name}"))
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def _write(self, name: str, value: Record | Pause) -> None:
        replace_file(self.directory / name, msgspec.json.encode(value))


class LogFile:
    """Reads the log of a shim and remembers its position."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0

    def tail(self, count: int) -> list[LogLine]:
        """Return the last lines, oldest first; `more` continues from there."""
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
                data += self._new_bytes(path)
        return _lines(data)

    def _new_bytes(self, path: Path) -> bytes:
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
    """Return the directory of a sandbox, existing or not; None if the id is invalid."""
    if not is_sandbox_id(sandbox_id):
        return None
    return SandboxDirectory(directory=state_dir / sandbox_id)


def require_folder(state_dir: Path, sandbox_id: str) -> SandboxDirectory:
    """Return the directory of a sandbox, existing or not; OrderRejected if the id is invalid."""
    if (folder := find_folder(state_dir, sandbox_id)) is None:
        raise OrderRejected(f"The id {sandbox_id!r} cannot name a directory")
    return folder


def list_folders(state_dir: Path, instance_id: str) -> Iterator[tuple[SandboxDirectory, datetime]]:
    """Yield this instance's sandboxes in a directory, with their creation times."""
    for directory in state_dir.iterdir():
        folder = find_folder(state_dir, directory.name)
        if folder is None:
            continue
        record = folder.read_record()
        if record is None:
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                yield folder, datetime.fromtimestamp(directory.stat().st_mtime, UTC)
        elif record.instance_id == instance_id:
            yield folder, record.created_at


def mark_of(instance_id: str, sandbox_id: str) -> str:
    """Return the mark of a sandbox's processes and temporary directory."""
    return f"{instance_id}/{sandbox_id}"


def temp_root(configured: str) -> Path:
    """Return the parent of temporary directories, short enough for the sockets in them."""
    root = Path(configured or tempfile.gettempdir()).resolve()
    longest = len(str(root / _TEMP_PREFIX)) + 8 + len(_LONGEST_SOCKET)
    return root if longest <= SOCKET_PATH_MAX else Path("/tmp")  # noqa: S108  # mode 0700 below


def new_temp_name(root: Path) -> str:
    """Return a new path for a temporary directory."""
    return str(root / f"{_TEMP_PREFIX}{secrets.token_hex(4)}")


def is_temp_name(path: Path) -> bool:
    """Return whether a path has the name of our temporary directories, in any parent."""
    return path.is_absolute() and _TEMP_NAME.fullmatch(path.name) is not None


def make_temp(path: str, mark: str, user: int = 0) -> Path:
    """Create a temporary directory with the sandbox's mark, unless it exists.

    Returns its inner directory, which is the sandbox's own, so that no name in it clashes with our
    files in the outer one. As root, give that to `user`. Raises FileExistsError for another mark.
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
    """Return the mark of a temporary directory; empty if not set yet, None if it is not ours."""
    try:
        info = path.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
            return None
        # A sandbox can write here: binary data is no known mark, and must not raise.
        return (path / MARK).read_bytes().decode(errors="replace")
    except FileNotFoundError:
        return "" if path.is_dir() else None
    except OSError:
        return None


def list_temps(root: Path) -> Iterator[tuple[Path, str]]:
    """Yield the temporary directories of all sandboxes with their marks."""
    for path in root.glob(f"{_TEMP_PREFIX}*"):
        if mark := temp_mark(path):
            yield path, mark


def remove_temps(mark: str, root: Path, known: str) -> None:
    """Remove a sandbox's temporary directories, including a known one without a mark."""
    found = [path for path, owner in list_temps(root) if owner == mark]
    if known and temp_mark(Path(known)) in (mark, ""):
        found.append(Path(known))
    for path in found:
        remove_directory(path)


def new_record(instance_id: str, order: Order, root: Path) -> Record:
    """Return the record of a new sandbox, with a temporary directory in `root`."""
    temp = new_temp_name(root)
    return copy_to(Record, order, instance_id=instance_id, created_at=now(), temp=temp)


def _real_path(path: Path) -> Path:
    # `resolve` raises RuntimeError for a link to itself.
    return Path(os.path.realpath(path))


def _last_message(lines: list[str]) -> str:
    found, is_noise = "", True
    for line in lines:
        if not line.strip():
            continue
        if not line.startswith(_CONTINUATION):
            is_noise = _NOISE.search(line) is not None
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
