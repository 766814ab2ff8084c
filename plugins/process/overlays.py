"""Overlay mounts of layers below the home and workspace of sandboxes, which store only changes.

overlayfs mounts both at the sandbox's own paths in the machine's mount namespace, where server and
sandbox see them. So this needs root, and the mounts outlive the server but not a reboot: they are
restored before a sandbox's files are used. The changes are in the sandbox's directory, below a
directory named after the layer; the layer is in use as long as that exists. All functions block
briefly; call them from a thread.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from agentsvc.base import BackendUnavailable, OrderRejected
from agentsvc.plugin import Advice, remove_directory

from . import bubblewrap
from .files import mounts_of
from .sandbox_directory import SandboxDirectory

HELD: Final = ".held"
"""Suffix of a layer that is marked for removal while sandboxes still use it."""

LAYER_GONE: Final = "The prepared files that the sandbox starts from are gone"

_OVER: Final = "over-"
_OLD: Final = "over.old"
_DETACH: Final = 2
_NO_FOLLOW: Final = 8
_CLONE_FILE: Final = 0x40049409


class Part(NamedTuple):
    """The home or the workspace of a sandbox: its mount point, and the directory of its changes."""

    seen: Path
    changes: Path


class Overlays:
    """The overlay mounts of the sandboxes in one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._layers = state_dir / ".layers"
        self._lock = threading.Lock()
        self.why_not = "it was not tried"
        """Why new sandboxes get copies instead; empty if overlays work."""
        self._can_reflink = False

    def find(self, user: int, *, is_wanted: bool = True) -> None:
        """Check whether overlays work here; `user` is a sandbox's user id, or 0."""
        try:
            with bubblewrap.trial(self._state_dir) as directory:
                self._can_reflink = _can_reflink(directory)
                self.why_not = (
                    _why_not(directory, user) if is_wanted else "`use_overlayfs` is false"
                )
        except OSError as exc:
            self.why_not = f"it could not be tried: {exc.strerror}"

    def describe(self) -> str:
        """Describe how sandboxes get the files of a layer."""
        if not self.why_not:
            return "shared by overlayfs"
        copied = "copied, which shares blocks (reflinks)" if self._can_reflink else "copied"
        return f"{copied}: {self.why_not}"

    def advice(self) -> Iterator[Advice]:
        """Report that each sandbox copies its prepared environment, if overlays do not work."""
        if self.why_not:
            text = f"each sandbox has a copy of its prepared environment: {self.why_not}"
            yield Advice(subject="layers", text=text)

    def begin(self, folder: SandboxDirectory, layer: Path, user: int) -> None:
        """Mount a layer below a sandbox that has never run; raises OrderRejected if it is gone."""
        over = folder.directory / f"{_OVER}{layer.name}"
        if _changes_in(folder) not in (None, over):
            self.drop(folder)
        # From here on the layer counts as used; it may have been removed just before.
        for part in _parts(folder, over):
            for directory in (part.changes, _work_directory(part)):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chown(part.changes, user, user)
        if not layer.is_dir():
            self.drop(folder)
            raise OrderRejected(LAYER_GONE)
        self.mount(folder)

    def mount(self, folder: SandboxDirectory) -> None:
        """Mount a sandbox's overlays, unless they are mounted or it has none."""
        with self._lock:
            over = _changes_in(folder)
            if over is None or folder.is_being_removed():
                return
            unseen = [part for part in _parts(folder, over) if not part.seen.is_mount()]
            if unseen:
                self._mount(over.name.removeprefix(_OVER), unseen)

    def unmount(self, folder: SandboxDirectory) -> None:
        """Unmount a sandbox's overlays; nothing may run in it."""
        with self._lock:
            for path in (folder.home, folder.workspace):
                while path.is_mount():
                    _unmount(path)

    def drop(self, folder: SandboxDirectory) -> None:
        """Unmount a sandbox's overlays and delete its changes; nothing may run in it."""
        self.unmount(folder)
        old = folder.directory / _OLD
        remove_directory(old)
        if (over := _changes_in(folder)) is not None:
            over.rename(old)
            remove_directory(old)

    def used(self) -> set[str]:
        """Return the ids of the layers that sandboxes of any instance use; raises OSError."""
        found = set()
        with os.scandir(self._state_dir) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    over = _changes_in(SandboxDirectory(directory=Path(entry.path)))
                    found |= {over.name.removeprefix(_OVER)} if over else set()
        return found

    def _mount(self, layer_id: str, parts: list[Part]) -> None:
        layer = self._layers / layer_id
        if not layer.is_dir():
            layer = layer.with_suffix(HELD)
        for part in parts:
            part.seen.mkdir(mode=0o700, exist_ok=True)
        orders = {
            "name": f"agentsvc-layer-{layer_id}",
            "owner": (layer / parts[0].seen.name).stat().st_uid,
            "user": parts[0].changes.stat().st_uid,
            "mounts": [_orders(layer / part.seen.name, part) for part in parts],
        }
        if problem := _run(orders):
            raise BackendUnavailable("The files of a layer cannot be mounted", detail=problem)


def changes(folder: SandboxDirectory) -> list[Part]:
    """Return the mount points and change directories of a sandbox; empty if it has copies."""
    over = _changes_in(folder)
    return _parts(folder, over) if over else []


def _why_not(directory: Path, user: int) -> str:
    if sys.platform != "linux":
        return "this is not Linux"
    if os.geteuid() != 0:
        return "the server is not root, and only root may mount"
    # Namespaces of other processes can be compared only with ptrace rights, mount ids without;
    # those are unique across namespaces.
    if _root_mount("self") != _root_mount("1"):
        return "the server has a mount namespace of its own, and mounts would end with it"
    part = Part(directory / "seen", directory / "changes")
    lower = directory / "layer"
    for path in (lower, part.seen, part.changes, _work_directory(part)):
        path.mkdir()
    os.chown(part.changes, user, user)
    mounts = [_orders(lower, part)]
    return _run({"name": "trial", "owner": 0, "user": user, "mounts": mounts, "is_trial": True})


def _root_mount(process: str) -> str:
    found = ""
    for number, _parent, _device, _root, seen_at, *_ in mounts_of(process):
        found = number if seen_at == "/" else found
    return found


def _can_reflink(directory: Path) -> bool:
    one, other = directory / "one", directory / "other"
    one.write_bytes(b"x")
    with one.open("rb") as source, other.open("wb") as target, contextlib.suppress(OSError):
        fcntl.ioctl(target, _CLONE_FILE, source.fileno())
        return True
    return False


def _changes_in(folder: SandboxDirectory) -> Path | None:
    with contextlib.suppress(FileNotFoundError), os.scandir(folder.directory) as entries:
        return next((Path(one.path) for one in entries if one.name.startswith(_OVER)), None)
    return None


def _parts(folder: SandboxDirectory, over: Path) -> list[Part]:
    return [Part(seen, over / seen.name / "changes") for seen in (folder.home, folder.workspace)]


def _work_directory(part: Part) -> Path:
    return part.changes.with_name("work")


def _orders(lower: Path, part: Part) -> dict[str, str]:
    return {
        "lower": str(lower),
        "upper": str(part.changes),
        "work": str(_work_directory(part)),
        "at": str(part.seen),
    }


def _run(orders: dict[str, Any]) -> str:
    """Run the `overlay` program with these orders; return the problem, or an empty string."""
    stdin = json.dumps({"is_trial": False, **orders}).encode()
    return bubblewrap.try_program(bubblewrap.running("overlay"), stdin=stdin)


def _unmount(path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # Processes that still read from it may continue: detach without waiting for them.
    if libc.umount2(os.fsencode(path), _DETACH | _NO_FOLLOW) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
