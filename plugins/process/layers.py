"""Layers: kept copies of the home and the workspace of a sandbox, with which others begin.

They are directories below `.layers` in the state directory. Sandboxes lie over them where that can be had
(see `overlays`); elsewhere `cp` copies them, by sharing their blocks where the file system can (reflinks). A
layer that is removed while sandboxes lie over it is renamed, and goes with the last of them. A sandbox may
begin with the files of another one, too, which are copied from the one to the other, while that runs.

Checkpoints are kept in the directory of their sandbox, and go with it. Files that have not changed since
the one before are shared with that.
"""

import asyncio
import contextlib
import errno
import os
import re
import threading
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from agentsvc.base import BackendUnavailable, CapacityExceeded, OrderRejected
from agentsvc.plugin import (
    FilesRefused,
    LongTasks,
    checkpoint_id_of,
    copy_running,
    kept_checkpoints,
    remove_directory,
    take_checkpoint,
)

from .files import write_anew
from .overlays import HELD, LAYER_GONE, Overlays
from .sandbox_directory import SandboxDirectory
from .threads import FULL, finish, reach, to_error
from .users import give

_ID: Final = re.compile(r"[a-z0-9]{1,64}")
_MARK: Final = "layer"
"""The file in the directory of a sandbox that says with whose files its own began."""
_PART: Final = "layer.part"
_GONE: Final = "The sandbox with whose files this one is to begin is gone"
_ROLLBACK: Final = "rollback"
"""The file that says to which checkpoint a sandbox goes back when it starts."""
_SHOWN: Final = 500


class Layers:
    """The layers of one installation."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / ".layers"
        self.overlays = Overlays(state_dir)
        self._removing = threading.Lock()
        self._copying = LongTasks()

    async def close(self) -> None:
        """End what is being copied; what is there of it is removed when the server starts again."""
        await self._copying.close()

    async def abandon(self, sandbox_id: str) -> None:
        """End the copying for a sandbox that is to go."""
        for name in (sandbox_id, f"{sandbox_id} checkpoint", f"{sandbox_id} rollback"):
            await self._copying.abandon(name)

    def sweep(self) -> None:
        """Remove what was not copied to its end, and what nobody uses any more. Blocks."""
        for part in self._directory.glob("*.part"):
            remove_directory(part)
        self._remove_held()
        with contextlib.suppress(OSError):  # there are some, or there never were any
            self._directory.rmdir()

    def forget(self, folder: SandboxDirectory) -> None:
        """Have no layer be used by a sandbox that is to go, in which nothing runs. Blocks."""
        folder.leave()
        self.overlays.drop(folder)
        self._remove_held()

    async def attach(self, folder: SandboxDirectory) -> None:
        """Have all files of a sandbox be seen, also after the machine was restarted."""
        await finish(lambda: self.overlays.mount(folder))

    async def ids(self) -> list[str]:
        """Return the ids of the layers there are."""
        return await reach(self._ids)

    async def keep(self, folder: SandboxDirectory, layer_id: str, max_bytes: int) -> int:
        """Make a layer of the files of a sandbox in which nothing runs; return its bytes.

        Raises StillFetching until it is done.
        """
        layer = self._path(layer_id)
        return await self._copying.go_on(layer_id, lambda: self._keep(folder, layer, max_bytes))

    async def begin(self, folder: SandboxDirectory, layer_id: str, user: int) -> None:
        """Give a sandbox that has never run the files of a layer; does nothing a second time.

        Raises StillFetching until they are there, OrderRejected where there is no such layer.
        """
        layer = self._path(layer_id)

        async def begin() -> None:
            if not self.overlays.why_not:
                await finish(lambda: self.overlays.begin(folder, layer, user))
                return
            if not await reach(layer.is_dir):
                raise OrderRejected(LAYER_GONE)
            await self._begin(folder, layer, user)

        await self._once(folder, layer_id, begin)

    async def begin_as(self, folder: SandboxDirectory, other: SandboxDirectory, user: int) -> None:
        """Give a sandbox that has never run the files of another one; does nothing a second time.

        Raises StillFetching until they are there, OrderRejected where the other one is gone.
        """
        await self._once(folder, other.sandbox_id, lambda: self._begin_as(folder, other, user))

    async def keep_checkpoint(
        self, folder: SandboxDirectory, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Keep a checkpoint of a sandbox, and of the older ones as many as may be.

        Raises StillFetching until that is done, OrderRejected for files that are too large.
        """
        if _ID.fullmatch(checkpoint_id) is None:
            raise OrderRejected("The checkpoint's id cannot name a directory")

        async def work() -> None:
            await self.attach(folder)
            await _unless_cancelled(
                lambda broken_off: take_checkpoint(
                    folder.checkpoints,
                    checkpoint_id,
                    _files_of(folder),
                    keep=keep,
                    max_bytes=max_bytes,
                    broken_off=broken_off,
                )
            )

        await self._copying.go_on(f"{folder.sandbox_id} checkpoint", work)

    async def checkpoints(self, folder: SandboxDirectory) -> list[tuple[str, int]]:
        """Return the checkpoints of a sandbox with when they were begun, the oldest first."""
        found = await reach(lambda: kept_checkpoints(folder.checkpoints))
        return [(checkpoint_id_of(copy), copy.begun) for copy in found]

    async def roll_back(self, folder: SandboxDirectory, checkpoint_id: str) -> None:
        """Have a sandbox that is stopped start with the files of a checkpoint."""

        def work() -> None:
            for copy in kept_checkpoints(folder.checkpoints):
                if checkpoint_id_of(copy) == checkpoint_id:
                    write_anew(folder.directory / _ROLLBACK, copy.path.name.encode())
                    return
            raise OrderRejected("There is no such checkpoint")

        await finish(work)

    async def finish_rollback(self, folder: SandboxDirectory, user: int) -> None:
        """Put the files of a checkpoint into a sandbox that is to start, if that was asked for.

        Raises StillFetching until they are there.
        """
        note = folder.directory / _ROLLBACK
        if not await reach(note.exists):
            return
        source = folder.checkpoints / await reach(note.read_text)
        await self._copying.go_on(
            f"{folder.sandbox_id} rollback", lambda: self._begin(folder, source, user)
        )
        await reach(note.unlink)

    async def remove(self, layer_id: str) -> None:
        """Remove a layer; fine if there is none."""
        layer = self._path(layer_id)

        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                layer.rename(layer.with_suffix(HELD))
            remove_directory(layer.with_suffix(".part"))
            self._remove_held()

        await finish(work)

    def _remove_held(self) -> None:
        """Remove the layers that were to be removed, and that no sandbox lies over any more."""
        with self._removing:
            held = list(self._directory.glob(f"*{HELD}"))
            if not held:
                return
            used = self.overlays.used()
            for layer in held:
                if layer.stem not in used:
                    part = layer.with_suffix(".part")
                    layer.rename(part)
                    remove_directory(part)
            with contextlib.suppress(OSError):  # there are others
                self._directory.rmdir()

    def _ids(self) -> list[str]:
        # As for sandboxes: an unmounted disk has removed none.
        self._directory.parent.stat()
        with contextlib.suppress(FileNotFoundError):
            return [path.name for path in self._directory.iterdir() if not path.suffix]
        return []

    def _path(self, layer_id: str) -> Path:
        if _ID.fullmatch(layer_id) is None:
            raise OrderRejected("The layer's id cannot name a directory")
        return self._directory / layer_id

    async def _once(
        self,
        folder: SandboxDirectory,
        source: str,
        begin: Callable[[], Coroutine[None, None, None]],
    ) -> None:
        mark = folder.directory / _MARK
        if not await reach(mark.exists):
            await self._copying.go_on(folder.sandbox_id, begin)
            await reach(lambda: mark.write_text(source))

    async def _keep(self, folder: SandboxDirectory, layer: Path, max_bytes: int) -> int:
        await self.attach(folder)
        parts = (folder.home, folder.workspace)
        size = await _size_of(parts)
        if size > max_bytes:
            raise OrderRejected(f"The files take {size} bytes, and a layer at most {max_bytes}")
        if await reach(layer.is_dir):
            return size
        part = layer.with_suffix(".part")
        await finish(partial(remove_directory, part))
        await reach(lambda: part.mkdir(mode=0o700, parents=True))
        try:
            await _copy(parts, part)
            if os.geteuid() == 0:
                # Whoever it was may be somebody else later; these are nobody's.
                await finish(lambda: give((part / one.name for one in parts), 0))
            await reach(lambda: part.rename(layer))
        finally:
            await finish(partial(remove_directory, part))
        return size

    async def _begin(self, folder: SandboxDirectory, layer: Path, user: int) -> None:
        part = await _new_part(folder)
        await _copy((layer / folder.home.name, layer / folder.workspace.name), part)
        await finish(lambda: self._put(folder, part, user))

    async def _begin_as(self, folder: SandboxDirectory, other: SandboxDirectory, user: int) -> None:
        await self.attach(other)
        part = await _new_part(folder)
        copy = await _unless_cancelled(
            lambda broken_off: copy_running(_files_of(other), part, broken_off)
        )

        def work() -> None:
            if other.is_to_go() or other.read_record() is None:
                raise OrderRejected(_GONE)
            self._put(folder, copy.path, user)
            part.rmdir()

        await finish(work)

    def _put(self, folder: SandboxDirectory, part: Path, user: int) -> None:
        """Have the sandbox's own directories be those that were copied, and lie over no layer."""
        copies = (part / folder.home.name, part / folder.workspace.name)
        if os.geteuid() == 0:
            give(copies, user)
        self.overlays.drop(folder)
        for copy, own in zip(copies, (folder.home, folder.workspace), strict=True):
            remove_directory(own)
            copy.rename(own)
        part.rmdir()
        self._remove_held()


def _files_of(folder: SandboxDirectory) -> dict[str, Path]:
    return {path.name: path for path in (folder.home, folder.workspace)}


async def _unless_cancelled[T](work: Callable[[Event], T]) -> T:
    """Copy files of a sandbox in a thread, and break that off when this is cancelled."""
    broken_off = Event()

    def translated() -> T:
        try:
            return work(broken_off)
        except FileNotFoundError as exc:
            raise OrderRejected(_GONE) from exc
        except FilesRefused as exc:
            raise OrderRejected(str(exc)) from exc

    copying = asyncio.get_running_loop().create_task(finish(translated))
    try:
        return await asyncio.shield(copying)
    except asyncio.CancelledError:
        broken_off.set()
        await asyncio.gather(copying, return_exceptions=True)
        raise


async def _new_part(folder: SandboxDirectory) -> Path:
    part = folder.directory / _PART
    await finish(partial(remove_directory, part))
    await reach(lambda: part.mkdir(mode=0o700))
    return part


async def _size_of(paths: Iterable[Path]) -> int:
    """Return how many bytes of disk directories take."""
    said = await _run("du", "--summarize", "--total", "--block-size=1", "--", *map(str, paths))
    return int(said.splitlines()[-1].split()[0])


async def _copy(directories: Iterable[Path], into: Path) -> None:
    await _run("cp", "--archive", "--reflink=auto", "--", *map(str, directories), str(into))


async def _run(*argv: str) -> str:
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=env
        )
    except OSError as exc:
        if exc.errno not in FULL:
            raise
        raise to_error(exc) from exc
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        detail = err.decode(errors="replace").strip()[-_SHOWN:]
        if os.strerror(errno.ENOSPC) in detail:
            raise CapacityExceeded("This machine's disk is full", detail=detail)
        raise BackendUnavailable(f"`{argv[0]}` could not copy the files", detail=detail)
    return out.decode(errors="replace")
