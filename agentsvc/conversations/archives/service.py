"""The archives of all users: saved in the background, also after a restart, and restored.

A workspace is packed by `tar` in its sandbox, downloaded, and rewritten by `tarball` before it
counts as saved.
"""

import asyncio
import contextlib
import logging
import re
import shlex
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import (
    AgentsvcError,
    ArchiveRefused,
    CapacityExceeded,
    Conflict,
    Gone,
    NotFound,
    SandboxNotUsable,
    StartRefused,
    Supervisor,
    flush,
    now,
    reason_of,
    sha256,
    to_stored,
)
from agentsvc.config import ArchivesConfig
from agentsvc.conversations.archives.model import Archive, ArchiveState, PausedState
from agentsvc.conversations.archives.table import find_archive, insert_archive, search_archives
from agentsvc.conversations.archives.tarball import Contents, UnpackLimits, read_parts, repack
from agentsvc.domain import WhenFull
from agentsvc.plugin import finish
from agentsvc.sandboxes import Sandboxes, SandboxStatus, Target
from agentsvc.storage import SPARSE, Database, SqlPage, Transaction, cut, row_of

log = logging.getLogger(__name__)

_PACK: Final = f"tar --exclude={{hidden}} {SPARSE} -C {{directory}} -czf {{file}} ."
# A start that is resumed after a restart unpacks only once: its agent may have changed files since.
_UNPACK: Final = (
    "if [ ! -e {mark} ]; then"
    " mkdir -p {directory} && tar --no-same-owner -C {directory} -xf {file} && : >{mark}; fi;"
    " code=$?; rm -f {file}; exit $code"
)
_UNFINISHED: Final = "SELECT id FROM archives WHERE state = 'saving' ORDER BY created_at"
_OLDER: Final = "SELECT id FROM archives WHERE state <> 'saving' AND created_at < :moment"
_OVER_LIMIT: Final = """
    SELECT id
    FROM (
        SELECT id, sum(size_bytes) OVER (ORDER BY created_at DESC, id DESC) AS total
        FROM archives
        WHERE state <> 'saving'
    )
    WHERE total > :most
"""
"""The oldest archives, to be deleted so that the others fit the limit."""
_END: Final = """
    UPDATE archives
    SET state = :state, reason = :reason, size_bytes = :size_bytes,
        unpacked_bytes = :unpacked_bytes, files = :files, skipped = :skipped
    WHERE id = :id
"""
_IN_USE: Final = "SELECT EXISTS (SELECT 1 FROM conversations WHERE sandbox_id = :id)"
_RELEASE: Final = "UPDATE archives SET releases = 1 WHERE sandbox_id = :id AND state = 'saving'"
_NO_ARCHIVE: Final = "The archive does not exist any more. Start the conversation without it"
_FILE_NAME: Final = re.compile(r"([0-9a-f]{32})\.(tar\.zst|part|draft)")
_MAX_SHOWN: Final = 1000
_MAX_PACKING: Final = 2
_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 30.0


class Archives(msgspec.Struct, kw_only=True, eq=False):
    """Saves, lists, restores and deletes archives."""

    db: Database
    directory: Path
    sandboxes: Sandboxes
    supervisor: Supervisor
    config: ArchivesConfig
    # Leave threads to other work: the pool has at least five, and a workspace may have gigabytes.
    _packing: asyncio.Semaphore = msgspec.field(
        default_factory=lambda: asyncio.Semaphore(_MAX_PACKING)
    )

    async def insert(self, tx: Transaction, archive: Archive) -> None:
        """Insert an archive in the caller's transaction; it is saved in the background."""
        await insert_archive(tx, archive)
        tx.after_commit(partial(self._save_soon, archive.id))

    async def get(self, user_id: str, archive_id: str) -> Archive:
        """Return a user's archive; raises NotFound."""
        found = await self._find(archive_id)
        if found is None or found.user_id != user_id:
            raise NotFound("Archive not found")
        return found

    async def search(
        self, user_id: str, *, page_id: str | None, limit: int
    ) -> tuple[list[Archive], str | None]:
        """Return a page of a user's archives, newest first, and the id of the next page."""
        rows = await search_archives(self.db, user_id, SqlPage.newest_first(page_id), limit + 1)
        found = await asyncio.to_thread(lambda: [self._check_file(one) for one in rows])
        return cut(found, limit, lambda one: (to_stored(one.created_at), one.id))

    async def delete(self, user_id: str, archive_id: str) -> None:
        """Delete an archive; raises NotFound, and Conflict while it is being saved."""
        archive = await self.get(user_id, archive_id)
        if archive.state is ArchiveState.SAVING:
            raise Conflict("The archive is being saved")
        await self._remove(archive_id)

    async def release(self, tx: Transaction, sandbox_id: str) -> None:
        """Release a sandbox as `give_up` does, unless it has a conversation."""
        if not await tx.value(_IN_USE, {"id": sandbox_id}):
            await self.give_up(tx, sandbox_id)

    async def give_up(self, tx: Transaction, sandbox_id: str) -> None:
        """Release a sandbox, after all pending archives of it are saved."""
        if not await tx.run(_RELEASE, {"id": sandbox_id}):
            await self.sandboxes.release(tx, sandbox_id)

    async def forget_rest(self, tx: Transaction, sandbox_id: str | None) -> None:
        """Keep a sandbox running after its archives are saved, because its user needs it again."""
        sql = "UPDATE archives SET rest = '' WHERE sandbox_id = :id AND state = 'saving'"
        await tx.run(sql, {"id": sandbox_id})

    async def wait_ready(self, archive_id: str) -> Archive:
        """Wait until an archive is saved, and return it; raises StartRefused if it fails."""
        # Saving has a time limit of its own. It is started again if its end was not stored.
        self._save_soon(archive_id)
        await self.supervisor.join(_task_name(archive_id))
        archive = await self._find(archive_id)
        if archive is None:
            raise StartRefused(_NO_ARCHIVE)
        if archive.state is not ArchiveState.READY:
            cause = f"The workspace is not saved: {archive.reason}"
            raise StartRefused(reason_of(cause, "Save it again, or start without it"))
        return archive

    async def restore(self, archive: Archive, agent: AgentServer, directory: str) -> None:
        """Unpack an archive in a sandbox, once; raises StartRefused if that fails."""
        name = f"{await agent.home()}/{_hidden(archive.id)}-{sha256(directory)[:16]}"
        file, mark = f"{name}.tar", f"{name}.done"
        source = self._file(archive.id)
        if not await asyncio.to_thread(source.exists):
            raise StartRefused(_NO_ARCHIVE)
        limit = self.config.save_seconds
        await agent.upload(file, _parts(source), time_limit=limit)
        command = _UNPACK.format(
            directory=shlex.quote(directory), file=shlex.quote(file), mark=shlex.quote(mark)
        )
        result = await agent.run_command(command, time_limit=limit)
        if result.exit_code != 0:
            raise StartRefused(
                reason_of(
                    "The archive could not be unpacked in the sandbox",
                    "Start again, with more disk for the sandbox if it lacks that",
                    f"{result.stdout}\n{result.stderr}".strip()[-_MAX_SHOWN:],
                )
            )

    # Periodic work

    async def go_on(self) -> None:
        """Resume interrupted archives, and delete files that belong to no archive."""
        known = set(await self.db.column("SELECT id FROM archives"))
        await asyncio.to_thread(self._sweep_files, known)
        for archive_id in await self.db.column(_UNFINISHED):
            self._save_soon(archive_id)

    async def forget_old(self) -> None:
        """Delete archives by age and total size, oldest first.

        Also retry archives whose end could not be stored in the database.
        """
        for archive_id in await self.db.column(_UNFINISHED):
            self._save_soon(archive_id)
        old: list[str] = []
        if self.config.keep_seconds:
            oldest = now() - timedelta(seconds=self.config.keep_seconds)
            old += await self.db.column(_OLDER, {"moment": to_stored(oldest)})
        if self.config.max_total_bytes:
            old += await self.db.column(_OVER_LIMIT, {"most": self.config.max_total_bytes})
        for archive_id in dict.fromkeys(old):
            await self._remove(archive_id)
            log.info("archive deleted by retention", extra={"archive_id": archive_id})

    async def _find(self, archive_id: str) -> Archive | None:
        found = await find_archive(self.db, archive_id)
        return found and await asyncio.to_thread(self._check_file, found)

    def _check_file(self, archive: Archive) -> Archive:
        """Return an archive as failed if its file is gone, as after a restore without archives."""
        if archive.state is not ArchiveState.READY:
            return archive
        try:
            self._file(archive.id).stat()
        except FileNotFoundError:
            return _failed(archive, "its file is missing")
        except OSError:
            # The file may exist: the disk is unavailable.
            return archive
        return archive

    def _save_soon(self, archive_id: str) -> None:
        self.supervisor.spawn(_task_name(archive_id), lambda: self._save(archive_id))

    async def _save(self, archive_id: str) -> None:
        archive = await find_archive(self.db, archive_id)
        if archive is None or archive.state is not ArchiveState.SAVING:
            return
        try:
            saved = await self._save_within_limit(archive)
        except asyncio.CancelledError:
            # The next start of the server resumes it.
            raise
        except BaseException:
            await self._end(_failed(archive, "an unexpected error, which is in the server's log"))
            raise
        await self._end(saved)

    async def _save_within_limit(self, archive: Archive) -> Archive:
        try:
            async with asyncio.timeout(self.config.save_seconds):
                return await self._try_until_saved(archive)
        except TimeoutError:
            return _failed(archive, f"it took longer than {self.config.save_seconds:g} s")
        except AgentsvcError as exc:
            log.warning(
                "workspace not archived",
                extra={"archive_id": archive.id, "reason": exc.log_text},
            )
            return _failed(archive, exc.message)
        except OSError:
            log.exception("archive cannot be written", extra={"archive_id": archive.id})
            return _failed(archive, "the server cannot write the file")

    async def _end(self, saved: Archive) -> None:
        if saved.state is not ArchiveState.READY:
            await asyncio.to_thread(self._file(saved.id).unlink, missing_ok=True)
        await self._restore_rest(saved)

        async def body(tx: Transaction) -> None:
            await tx.run(_END, row_of(saved))
            noted = await find_archive(tx, saved.id)
            if noted is not None and noted.releases:
                await self.release(tx, saved.sandbox_id)

        await self.db.write(body)
        log.info("archive finished", extra={"archive_id": saved.id, "state": str(saved.state)})

    async def _restore_rest(self, archive: Archive) -> None:
        """Pause or stop a sandbox again that was resumed for an archive."""
        noted = await find_archive(self.db, archive.id)
        if noted is None or noted.releases or noted.rest is PausedState.NONE:
            return
        if noted.rest is PausedState.CULLED:
            await self.sandboxes.idle.cull(archive.sandbox_id, Target.PAUSED, unused_since=now())
            return
        sandbox = await self.sandboxes.find_any(archive.sandbox_id)
        # A failure of this does not concern the archive.
        with contextlib.suppress(AgentsvcError):
            if sandbox is not None and noted.rest is PausedState.STOPPED:
                await self.sandboxes.stop(sandbox.user_id, sandbox.id)
            elif sandbox is not None:
                await self.sandboxes.pause(sandbox.user_id, sandbox.id)

    async def _try_until_saved(self, archive: Archive) -> Archive:
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                return await self._save_once(archive)
            except AgentsvcError as exc:
                if not exc.may_pass:
                    raise
                log.info(
                    "workspace cannot be archived now",
                    extra={"archive_id": archive.id, "reason": str(exc)},
                )
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_RETRY_SECONDS)

    async def _save_once(self, archive: Archive) -> Archive:
        agent = await self._find_agent(archive)
        with self.sandboxes.usage.hold(archive.sandbox_id):
            contents = await self._fetch(archive, agent)
        size = (await asyncio.to_thread(self._file(archive.id).stat)).st_size
        return msgspec.structs.replace(
            archive,
            state=ArchiveState.READY,
            size_bytes=size,
            unpacked_bytes=contents.unpacked_bytes,
            files=contents.files,
            skipped=contents.skipped,
        )

    async def _find_agent(self, archive: Archive) -> AgentServer:
        """Return the agent server once the sandbox runs; resume it, and store its former state."""
        found = await self.sandboxes.find_any(archive.sandbox_id)
        if found is not None and found.target.is_rest:
            rest = PausedState.STOPPED if found.target is Target.STOPPED else PausedState.PAUSED
            rest = PausedState.CULLED if await self.sandboxes.idle.is_culled(found) else rest
            params = {"id": archive.id, "rest": rest}
            sql = "UPDATE archives SET rest = :rest WHERE id = :id"
            await self.db.write(lambda tx: tx.run(sql, params))
            await self.sandboxes.resume(found.user_id, found.id, when_full=WhenFull.QUEUE)
        seen = await self.sandboxes.wait_for(
            archive.sandbox_id,
            lambda one: one is None or one.status not in _UNDER_WAY,
            time_limit=self.config.save_seconds,
        )
        if seen is None or seen.status is SandboxStatus.MISSING:
            raise Gone("the sandbox does not exist any more")
        agent = self.sandboxes.agent_of(seen)
        if agent is None:
            raise SandboxNotUsable(f"the sandbox does not run: {seen.reason or seen.status}")
        return agent

    async def _fetch(self, archive: Archive, agent: AgentServer) -> Contents:
        hidden = _hidden(archive.id)
        file = f"{await agent.home()}/{hidden}.tar.gz"
        limit = self.config.save_seconds
        command = _PACK.format(
            hidden=shlex.quote(f"{hidden}*"),
            directory=shlex.quote(archive.working_dir),
            file=shlex.quote(file),
        )
        part = self._path(archive.id, ".part")
        try:
            result = await agent.run_command(command, time_limit=limit)
            # 1 means that a file changed while tar read it.
            if result.exit_code not in (0, 1):
                text = f"{result.stdout}\n{result.stderr}".strip()[-_MAX_SHOWN:]
                raise ArchiveRefused(f"tar failed in the sandbox: {text}")
            await self._receive(agent, file, part)
            async with self._packing:
                return await finish(asyncio.to_thread(self._repack, archive.id, part))
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
            with contextlib.suppress(AgentsvcError):
                await agent.run_command(f"rm -f {shlex.quote(file)}", time_limit=limit)

    async def _receive(self, agent: AgentServer, file: str, part: Path) -> None:
        await asyncio.to_thread(self.directory.mkdir, mode=0o700, exist_ok=True)
        # Wait for the thread even if this is cancelled, so that its file exists for the removal.
        await finish(asyncio.to_thread(_create, part))
        size = 0

        async def write(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size > self.config.max_bytes:
                raise ArchiveRefused(
                    f"The workspace exceeds the limit for archives: {self.config.max_bytes} bytes"
                )
            try:
                await finish(asyncio.to_thread(_append, part, data))
            except OSError as exc:
                raise CapacityExceeded("The server has no room for the archive") from exc

        try:
            await agent.receive(file, write, time_limit=self.config.save_seconds)
        except NotFound as exc:
            raise ArchiveRefused("The tar file in the sandbox has been deleted") from exc

    def _repack(self, archive_id: str, part: Path) -> Contents:
        bounds = UnpackLimits(
            unpacked_bytes=self.config.max_unpacked_bytes, files=self.config.max_files
        )
        draft = self._path(archive_id, ".draft")
        _create(draft)
        try:
            contents = repack(part, draft, bounds)
            # Flush first: once the archive counts as saved, its sandbox may be deleted.
            flush(draft)
            draft.replace(self._file(archive_id))
            # Not every file system can flush a directory.
            with contextlib.suppress(OSError):
                flush(self.directory)
        finally:
            draft.unlink(missing_ok=True)
        return contents

    async def _remove(self, archive_id: str) -> None:
        await asyncio.to_thread(self._file(archive_id).unlink, missing_ok=True)
        sql = "DELETE FROM archives WHERE id = :id"
        await self.db.write(lambda tx: tx.run(sql, {"id": archive_id}))

    def _sweep_files(self, known: set[str]) -> None:
        for file in self.directory.glob("*.*"):
            name = _FILE_NAME.fullmatch(file.name)
            if name and (name[1] not in known or name[2] != "tar.zst"):
                # The next start tries again.
                with contextlib.suppress(OSError):
                    file.unlink()

    def _file(self, archive_id: str) -> Path:
        return self._path(archive_id, ".tar.zst")

    def _path(self, archive_id: str, suffix: str) -> Path:
        # A restored database may have forged ids with a path.
        return self.directory / f"{Path(archive_id).name}{suffix}"


_UNDER_WAY: Final = (SandboxStatus.STARTING, SandboxStatus.PAUSED)


def _failed(archive: Archive, reason: str) -> Archive:
    return msgspec.structs.replace(archive, state=ArchiveState.FAILED, reason=reason)


def _task_name(archive_id: str) -> str:
    return f"archive {archive_id}"


def _hidden(archive_id: str) -> str:
    return f".agentsvc-archive-{archive_id}"


async def _parts(source: Path) -> AsyncIterator[bytes]:
    parts = read_parts(source)
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        yield part


def _create(file: Path) -> None:
    file.unlink(missing_ok=True)
    file.touch(mode=0o600)


def _append(file: Path, data: bytes) -> None:
    with file.open("ab") as out:
        out.write(data)
