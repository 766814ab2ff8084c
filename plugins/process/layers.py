"""Layers: saved copies of a sandbox's home and workspace that new sandboxes start from.

They are directories below `.layers` in the state directory. Sandboxes mount them with overlayfs if
possible (see `overlays`); otherwise `cp` copies them, sharing blocks if the file system supports
reflinks. A layer that is removed while sandboxes use it is renamed, and deleted with the last of
them. A sandbox may also start from the files of another sandbox, which are copied while that runs.

Checkpoints are stored in the directory of their sandbox and removed with it. Files that have not
changed since the previous checkpoint share its copies.
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

from .files import replace_file
from .overlays import HELD, LAYER_GONE, Overlays
from .sandbox_directory import SandboxDirectory
from .threads import FULL, finish, reach, to_error
from .users import give

_ID: Final = re.compile(r"[a-z0-9]{1,64}")
_MARK: Final = "layer"
"""The file in a sandbox's directory that names the layer or sandbox it was started from."""
_PART: Final = "layer.part"
_GONE: Final = "The sandbox whose files are to be copied is gone"
_ROLLBACK: Final = "rollback"
"""The file that names the checkpoint a sandbox restores at its next start."""
_SHOWN: Final = 500


class Layers:
    """The layers of one installation."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / ".layers"
        self.overlays = Overlays(state_dir)
        self._removing = threading.Lock()
        self._copying = LongTasks()

    async def close(self) -> None:
        """Cancel running copies; partial ones are removed at the next server start."""
        await self._copying.close()

    async def abandon(self, sandbox_id: str) -> None:
        """Cancel the copies of a sandbox that is being deleted."""
        for name in (sandbox_id, f"{sandbox_id} checkpoint", f"{sandbox_id} rollback"):
            await self._copying.abandon(name)

    def sweep(self) -> None:
        """Remove partial copies and unused layers that were marked for removal. Blocks."""
        for part in self._directory.glob("*.part"):
            remove_directory(part)
        self._remove_unused()
        with contextlib.suppress(OSError):  # it has layers, or does not exist
            self._directory.rmdir()

    def forget(self, folder: SandboxDirectory) -> None:
        """Detach a sandbox that is being deleted, and does not run, from its layer. Blocks."""
        folder.leave()
        self.overlays.drop(folder)
        self._remove_unused()

    async def attach(self, folder: SandboxDirectory) -> None:
        """Mount the overlays of a sandbox unless they are mounted, e.g. after a reboot."""
        await finish(lambda: self.overlays.mount(folder))

    async def ids(self) -> list[str]:
        """Return the ids of the existing layers."""
        return await reach(self._ids)

    async def keep(self, folder: SandboxDirectory, layer_id: str, max_bytes: int) -> int:
        """Create a layer from the files of a sandbox that does not run; return its size in bytes.

        Raises StillFetching until it is complete.
        """
        layer = self._path(layer_id)
        return await self._copying.go_on(layer_id, lambda: self._keep(folder, layer, max_bytes))

    async def begin(self, folder: SandboxDirectory, layer_id: str, user: int) -> None:
        """Mount or copy a layer for a sandbox that has never run; does nothing the second time.

        Raises StillFetching until they are complete, OrderRejected if there is no such layer.
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
        """Copy another sandbox's files into one that has never run; does nothing the second time.

        Raises StillFetching until they are complete, OrderRejected if the other sandbox is gone.
        """
        await self._once(folder, other.sandbox_id, lambda: self._begin_as(folder, other, user))

    async def keep_checkpoint(
        self, folder: SandboxDirectory, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Create a checkpoint of a sandbox, and remove the oldest ones above `keep`.

        Raises StillFetching until that is complete, OrderRejected if the files are too large.
        """
        if _ID.fullmatch(checkpoint_id) is None:
            raise OrderRejected("The checkpoint's id cannot name a directory")

        async def work() -> None:
            await self.attach(folder)
            await _copy_in_thread(
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
        """Return ids and start times of a sandbox's checkpoints, the oldest first."""
        found = await reach(lambda: kept_checkpoints(folder.checkpoints))
        return [(checkpoint_id_of(copy), copy.begun) for copy in found]

    async def roll_back(self, folder: SandboxDirectory, checkpoint_id: str) -> None:
        """Record that a stopped sandbox restores this checkpoint at its next start."""

        def work() -> None:
            for copy in kept_checkpoints(folder.checkpoints):
                if checkpoint_id_of(copy) == checkpoint_id:
                    replace_file(folder.directory / _ROLLBACK, copy.path.name.encode())
                    return
            raise OrderRejected("There is no such checkpoint")

        await finish(work)

    async def finish_rollback(self, folder: SandboxDirectory, user: int) -> None:
        """Restore the recorded checkpoint, if any, before a sandbox starts.

        Raises StillFetching until the files are copied.
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
        """Remove a layer; does nothing if it does not exist."""
        layer = self._path(layer_id)

        def work() -> None:
            with contextlib.suppress(FileNotFoundError):
                layer.rename(layer.with_suffix(HELD))
            remove_directory(layer.with_suffix(".part"))
            self._remove_unused()

        await finish(work)

    def _remove_unused(self) -> None:
        """Delete the layers marked for removal that no sandbox uses any more."""
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
            with contextlib.suppress(OSError):  # other layers remain
                self._directory.rmdir()

    def _ids(self) -> list[str]:
        # As with sandboxes: a missing disk must not look like removed layers.
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
                # The sandbox's user id may be assigned to another sandbox later; give the copies to
                # root.
                await finish(lambda: give((part / one.name for one in parts), 0))
            await reach(lambda: part.rename(layer))
        finally:
            await finish(partial(remove_directory, part))
        return size

    async def _begin(self, folder: SandboxDirectory, layer: Path, user: int) -> None:
        part = await _new_part(folder)
        await _copy((layer / folder.home.name, layer / folder.workspace.name), part)
        await finish(lambda: self._replace_directories(folder, part, user))

    async def _begin_as(self, folder: SandboxDirectory, other: SandboxDirectory, user: int) -> None:
        await self.attach(other)
        part = await _new_part(folder)
        copy = await _copy_in_thread(
            lambda broken_off: copy_running(_files_of(other), part, broken_off)
        )

        def work() -> None:
            if other.is_being_removed() or other.read_record() is None:
                raise OrderRejected(_GONE)
            self._replace_directories(folder, copy.path, user)
            part.rmdir()

        await finish(work)

    def _replace_directories(self, folder: SandboxDirectory, part: Path, user: int) -> None:
        """Replace the sandbox's directories by the copies, and drop its overlays."""
        copies = (part / folder.home.name, part / folder.workspace.name)
        if os.geteuid() == 0:
            give(copies, user)
        self.overlays.drop(folder)
        for copy, own in zip(copies, (folder.home, folder.workspace), strict=True):
            remove_directory(own)
            copy.rename(own)
        part.rmdir()
        self._remove_unused()


def _files_of(folder: SandboxDirectory) -> dict[str, Path]:
    return {path.name: path for path in (folder.home, folder.workspace)}


async def _copy_in_thread[T](work: Callable[[Event], T]) -> T:
    """Run a copy in a thread, and abort it when the caller is cancelled."""
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
    """Return the disk usage of directories in bytes."""
    output = await _run("du", "--summarize", "--total", "--block-size=1", "--", *map(str, paths))
    return int(output.splitlines()[-1].split()[0])


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
