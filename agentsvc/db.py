"""Connections, transactions, migrations and copies of the one SQLite file.

The only module that opens a database. The SQL of a domain is in that domain's table class.
"""

import asyncio
import contextlib
import contextvars
import fcntl
import logging
import os
import sqlite3
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import aiosqlite
import msgspec

from agentsvc import values
from agentsvc.errors import (
    HINT_ACCESS,
    HINT_ROOM,
    BadRequest,
    CapacityExceeded,
    Conflict,
    StartFailed,
    hint_against,
)

log = logging.getLogger(__name__)

type Params = Mapping[str, Any]
Row = sqlite3.Row
IntegrityError = sqlite3.IntegrityError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
APPLICATION_ID: Final = 0x61737663
"""`asvc`: what tells our files from those of other programs."""

_READERS = 3
_LARGEST_BATCH = 64
_NO_PARAMS: Params = {}
_FOREIGN_LENGTH: Final = 16 * 1024 * 1024
_FOREIGN_STEP: Final = 1_000_000
_FOREIGN_STEPS: Final = 300
_FOREIGN_TABLE: Final = (
    "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = :name AND rootpage > 0"
)
_WRITER_SETUP = """
    PRAGMA synchronous = FULL;
    PRAGMA foreign_keys = ON;
    PRAGMA journal_size_limit = 67108864;
"""


class _Connection(Protocol):
    """Does what it is given with a connection of SQLite."""

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what the work returns."""


class _Apart:
    """The connection that writes, in a thread of its own, which does one thing after the other."""

    def __init__(self, thread: ThreadPoolExecutor, raw: sqlite3.Connection) -> None:
        self._thread = thread
        self._raw = raw

    @classmethod
    async def open(cls, path: Path, busy_seconds: float) -> "_Apart":
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database")
        loop = asyncio.get_running_loop()
        return cls(thread, await loop.run_in_executor(thread, _connect, path, busy_seconds))

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        # What is begun is done in order even if nobody waits for it any more.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work, self._raw))

    async def close(self) -> None:
        await self.call(sqlite3.Connection.close)
        self._thread.shutdown(wait=False)


class _Here:
    """A connection, for who is in its thread already."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._raw)


class Reader:
    """Queries in one snapshot of the database."""

    def __init__(self, fetch: Callable[[str, Params], Awaitable[Iterable[Row]]]) -> None:
        self._fetch = fetch

    async def one(self, sql: str, params: Params = _NO_PARAMS) -> Row | None:
        """Return the first row of a query, or None."""
        rows = await self.all(sql, params)
        return rows[0] if rows else None

    async def all(self, sql: str, params: Params = _NO_PARAMS) -> list[Row]:
        """Return every row of a query."""
        return list(await self._fetch(sql, params))


class Transaction(Reader):
    """Queries and changes that become durable together, or not at all."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__(partial(_fetch, connection))
        self._connection = connection
        self.callbacks: list[Callable[[], None]] = []

    async def run(self, sql: str, params: Params = _NO_PARAMS) -> int:
        """Run one statement and return how many rows it changed."""
        return await self._connection.call(lambda raw: raw.execute(sql, params).rowcount)

    async def run_many(self, sql: str, rows: Iterable[Params]) -> None:
        """Run one statement once for each of the rows."""
        await self._connection.call(lambda raw: raw.executemany(sql, rows))

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call this once the changes are durable, before the caller of `write` goes on.

        It is not called when the body fails or the commit does.
        """
        self.callbacks.append(callback)


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """A body that waits for its turn to write."""

    body: Callable[[Transaction], Awaitable[Any]]
    done: asyncio.Future[Any]
    context: contextvars.Context
    is_apart: bool


class _Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A body that ran, and is not durable yet."""

    job: _Job
    callbacks: list[Callable[[], None]]
    result: Any = None
    failure: BaseException | None = None


class Database:
    """One SQLite file: a queue of writers that share commits, and a pool of readers."""

    def __init__(self, path: Path, writer: _Apart, readers: list[aiosqlite.Connection]) -> None:
        self._path = path
        self._writer = writer
        self._readers = readers
        self._idle: asyncio.LifoQueue[aiosqlite.Connection] = asyncio.LifoQueue()
        for reader in readers:
            self._idle.put_nowait(reader)
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._is_open = True
        self._body: asyncio.Task[Any] | None = None
        self._writing = asyncio.create_task(self._write_until_closed(), name="database writer")

    @property
    def path(self) -> Path:
        """The file itself."""
        return self._path

    @classmethod
    async def open(
        cls, path: Path, *, migrations: Path = MIGRATIONS, busy_seconds: float = 5
    ) -> "Database":
        """Open the file, made if absent (mode 0600), after taking it through all migrations.

        A file with data is copied before it is migrated. Raises StartFailed, with a hint, for
        a file that is newer than the code, is no database of ours, is locked or not writable.
        """
        # At debug level it would log every statement with its values.
        logging.getLogger("aiosqlite").setLevel(logging.WARNING)
        await asyncio.to_thread(_prepare, path, migrations, busy_seconds)
        async with contextlib.AsyncExitStack() as opened:
            readers = [
                await opened.enter_async_context(
                    aiosqlite.connect(_uri(path, "ro"), **_options(busy_seconds))
                )
                for _ in range(_READERS)
            ]
            writer = await _Apart.open(path, busy_seconds)
            opened.pop_all()
        for reader in readers:
            reader.row_factory = Row
        return cls(path, writer, readers)

    async def write[T](self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run the body in a transaction and return what it returns once that is durable.

        Bodies run one at a time in the order of their calls, and await nothing but the
        transaction. One that raises is undone alone. Once called, the body runs to its end
        even if the caller is cancelled. Raises CapacityExceeded when the disk is full or the
        transaction is lost to another fault of the storage.
        """
        if asyncio.current_task() is self._body:
            raise RuntimeError("a transaction cannot wait for another one")
        return await self._enqueue(body, is_apart=False)

    async def write_apart[T](self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Do the same, the body running in the thread that writes: for what is written often.

        Nothing it touches may be changed by others meanwhile. What it does to anything but the
        database and its own variables belongs into `after_commit`.
        """
        return await self._enqueue(body, is_apart=True)

    async def read[T](self, body: Callable[[Reader], Awaitable[T]]) -> T:
        """Run queries that all see the same state; they never wait for writers."""
        async with self._lend() as connection:
            # What is sent to a connection is run in order even if nobody waits for it any
            # more, so a cancelled reader still leaves it without an open transaction.
            try:
                await connection.execute("BEGIN")
                return await body(_reader(connection))
            finally:
                await connection.execute("COMMIT")

    async def one(self, sql: str, params: Params = _NO_PARAMS) -> Row | None:
        """Return the first row of a query, or None."""
        async with self._lend() as connection:
            return await _reader(connection).one(sql, params)

    async def all(self, sql: str, params: Params = _NO_PARAMS) -> list[Row]:
        """Return every row of a query."""
        async with self._lend() as connection:
            return await _reader(connection).all(sql, params)

    async def backup(self, to: Path) -> None:
        """Write a whole and consistent copy, mode 0600; writers go on meanwhile.

        Raises Conflict if the destination exists, CapacityExceeded if it cannot be written; a
        copy that fails leaves nothing behind.
        """
        self._check_open()
        try:
            await asyncio.to_thread(_copy, self._path, to)
        except FileExistsError as exc:
            raise Conflict(f"the destination exists already: {to}") from exc
        except (OSError, sqlite3.Error) as exc:
            raise CapacityExceeded(f"the copy cannot be written ({exc}): {to}") from exc

    async def close(self) -> None:
        """Finish what is queued and running, then close; safe to call twice."""
        self._is_open = False
        self._wake.set()
        await asyncio.wait([self._writing])
        readers, self._readers = self._readers, []
        for _ in readers:
            await (await self._idle.get()).close()
        if readers:
            await self._writer.close()

    @contextlib.asynccontextmanager
    async def _lend(self) -> AsyncIterator[aiosqlite.Connection]:
        self._check_open()
        connection = await self._idle.get()
        try:
            yield connection
        finally:
            self._idle.put_nowait(connection)

    async def _enqueue[T](
        self, body: Callable[[Transaction], Awaitable[T]], *, is_apart: bool
    ) -> T:
        self._check_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        self._jobs.append(_Job(body=body, done=done, context=context, is_apart=is_apart))
        self._wake.set()
        return await done

    def _check_open(self) -> None:
        if not self._is_open:
            raise CapacityExceeded("the server is stopping", detail="the database is closed")

    async def _write_until_closed(self) -> None:
        while self._is_open or self._jobs:
            await self._wake.wait()
            self._wake.clear()
            while self._jobs:
                await self._write_batch()

    async def _write_batch(self) -> None:
        tried: list[_Job] = []
        attempts: list[_Attempt] = []
        try:
            if self._jobs[0].is_apart:
                attempts += await self._writer.call(partial(self._write_apart, tried))
            else:
                await self._write_together(tried, attempts)
        except sqlite3.Error as exc:
            await self._undo()
            lost = tried or self._take_all()
            log.exception("transaction lost", extra={"writes": len(lost)})
            for job in lost:
                _fail(job, _cannot_store(exc))
        else:
            for attempt in attempts:
                _settle(attempt)

    async def _write_together(self, tried: list[_Job], attempts: list[_Attempt]) -> None:
        await self._writer.call(_run("BEGIN IMMEDIATE"))
        while self._jobs and len(tried) < _LARGEST_BATCH:
            if self._jobs[0].is_apart:
                attempts += await self._writer.call(partial(self._attempt_apart, tried))
            else:
                tried.append(self._jobs.popleft())
                attempts.append(await self._attempt(tried[-1]))
        await self._writer.call(_run("COMMIT"))

    async def _attempt(self, job: _Job) -> _Attempt:
        tx = Transaction(self._writer)
        await self._writer.call(_run("SAVEPOINT body"))
        task = asyncio.create_task(_call(job.body, tx), name="write", context=job.context)
        self._body = task
        await asyncio.wait([task])
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        await self._writer.call(partial(_end_body, failure))
        result = None if failure else task.result()
        return _Attempt(job=job, callbacks=tx.callbacks, result=result, failure=failure)

    async def _undo(self) -> None:
        # If even this fails, the next transaction does not begin, and its callers hear it.
        with contextlib.suppress(sqlite3.Error):
            await self._writer.call(sqlite3.Connection.rollback)

    def _write_apart(self, tried: list[_Job], raw: sqlite3.Connection) -> list[_Attempt]:
        """Do all of it without going back to the loop, which may have much else to do."""
        raw.execute("BEGIN IMMEDIATE")
        attempts = self._attempt_apart(tried, raw)
        raw.execute("COMMIT")
        return attempts

    def _attempt_apart(self, tried: list[_Job], raw: sqlite3.Connection) -> list[_Attempt]:
        """Attempt the next bodies, while they are of those that run apart; the loop adds others."""
        attempts = []
        while self._jobs and self._jobs[0].is_apart and len(tried) < _LARGEST_BATCH:
            tried.append(self._jobs.popleft())
            attempts.append(_attempt_here(tried[-1], raw))
        return attempts

    def _take_all(self) -> list[_Job]:
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs


type Queryable = Reader | Database
"""What answers a query: a snapshot, a transaction, or the database itself for just one."""


async def _call[T](body: Callable[[Transaction], Awaitable[T]], tx: Transaction) -> T:
    return await body(tx)


def _attempt_here(job: _Job, raw: sqlite3.Connection) -> _Attempt:
    tx = Transaction(_Here(raw))
    raw.execute("SAVEPOINT body")
    result, failure = None, None
    try:
        result = job.context.run(_finish, _call(job.body, tx))
    except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # its caller hears it
        failure = exc
    _end_body(failure, raw)
    return _Attempt(job=job, callbacks=tx.callbacks, result=result, failure=failure)


def _finish[T](body: Coroutine[Any, Any, T]) -> T:
    """Run what waits for nothing to its end."""
    try:
        body.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    body.close()
    raise RuntimeError("a body that is apart can wait for nothing but its transaction")


def _end_body(failure: BaseException | None, raw: sqlite3.Connection) -> None:
    if not raw.in_transaction:
        # A full disk or a fault in reading or writing undoes all of it, and what the body
        # made of that does not count.
        raise sqlite3.OperationalError("SQLite rolled the transaction back") from failure
    if failure:
        raw.execute("ROLLBACK TO body")
    raw.execute("RELEASE body")


def _run(sql: str) -> Callable[[sqlite3.Connection], object]:
    return lambda raw: raw.execute(sql)


def _settle(attempt: _Attempt) -> None:
    job, failure = attempt.job, attempt.failure
    if isinstance(failure, asyncio.CancelledError):
        job.done.cancel()
    elif failure:
        _fail(job, _cannot_store(failure) if _is_full(failure) else failure)
    else:
        # The loop runs these before it wakes the caller, and reports one that raises.
        for callback in attempt.callbacks:
            job.done.get_loop().call_soon(callback, context=job.context)
        if not job.done.done():
            job.done.set_result(attempt.result)


def _fail(job: _Job, failure: BaseException) -> None:
    if job.done.done():
        log.warning("write failed after its caller had left", extra={"reason": repr(failure)})
    else:
        job.done.set_exception(failure)


def _is_full(failure: BaseException) -> bool:
    return isinstance(failure, sqlite3.Error) and _primary_code(failure) == sqlite3.SQLITE_FULL


def _cannot_store(cause: BaseException) -> CapacityExceeded:
    # One for each caller: a traceback grows with every place it is raised in.
    failure = CapacityExceeded(
        "the server cannot store anything now: its disk is full", detail=str(cause)
    )
    failure.__cause__ = cause
    return failure


def _primary_code(failure: sqlite3.Error) -> int:
    # Absent on errors of the module itself; the upper bits only refine the code.
    return int(getattr(failure, "sqlite_errorcode", 0)) & 0xFF


def _reader(connection: aiosqlite.Connection) -> Reader:
    return Reader(connection.execute_fetchall)


def _fetch(connection: _Connection, sql: str, params: Params) -> Awaitable[list[Row]]:
    return connection.call(lambda raw: raw.execute(sql, params).fetchall())


def _options(busy_seconds: float) -> dict[str, Any]:
    return {
        "uri": True,
        "isolation_level": None,
        "timeout": busy_seconds,
        "cached_statements": 256,
    }


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    # The work of a closed server's last caller may end in another thread.
    connection: sqlite3.Connection = sqlite3.connect(
        _uri(path, "rw"), check_same_thread=False, **_options(busy_seconds)
    )
    connection.row_factory = Row
    connection.executescript(_WRITER_SETUP)
    return connection


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


# Migrations. They run once at the start, on a plain connection in a thread.


def _prepare(path: Path, migrations: Path, busy_seconds: float) -> None:
    try:
        path.touch(mode=0o600)
        with contextlib.closing(
            sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _migrate(path, connection, migrations)
    except OSError as exc:
        message = f"the database cannot be opened: {path}"
        raise StartFailed(message, hint=hint_against(exc), detail=str(exc)) from exc
    except sqlite3.Error as exc:
        message = f"the database cannot be used ({exc}): {path}"
        hint = _HINTS.get(_primary_code(exc), HINT_ACCESS)
        raise StartFailed(message, hint=hint) from exc


_HINTS = {
    sqlite3.SQLITE_BUSY: "stop the other program that uses the file, then start again",
    sqlite3.SQLITE_NOTADB: "move the file away to start with a new database, or restore a backup",
    sqlite3.SQLITE_CORRUPT: "restore a backup; keep the damaged file until that has worked",
    sqlite3.SQLITE_FULL: HINT_ROOM,
    # It is also how SQLite says that there is no room for what readers and writers share.
    sqlite3.SQLITE_IOERR: "check that the disk has room and works, then start again",
    sqlite3.SQLITE_ERROR: "restore the last backup, and report this",
}


def _migrate(path: Path, connection: sqlite3.Connection, migrations: Path) -> None:
    files = _migration_files(migrations)
    newest = max(files)
    version = _find_version(path, connection, newest)
    if version == newest:
        return
    if version:
        _refuse_running(path)
    with _transaction(connection):
        # Another program may have migrated it since; from here on none can write.
        version = _find_version(path, connection, newest)
        if version == newest:
            return
        if version:
            copy = path.with_name(f"{path.name}.v{version}-{values.now():%Y%m%dT%H%M%S%f}")
            _copy(path, copy)
            log.info("database copied before its migration", extra={"path": str(copy)})
        for number in sorted(files):
            if number > version:
                _run_statements(connection, files[number].read_text("utf-8"))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {newest}")
    log.info("database migrated", extra={"from_version": version, "to_version": newest})


def _find_version(path: Path, connection: sqlite3.Connection, newest: int) -> int:
    version = _check_ours(path, connection)
    if version > newest:
        raise StartFailed(
            f"the database has version {version}, this program knows up to {newest}: {path}",
            hint="install the newer release again, or restore a backup made before it",
        )
    return version


def _refuse_running(path: Path) -> None:
    """Leave the schema alone of a server that runs, since that is of an earlier version."""
    with contextlib.suppress(FileNotFoundError), (path.parent / "lock").open("rb") as lock:
        holder = lock.read(20).decode(errors="replace").strip()
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            if holder != str(os.getpid()):
                raise StartFailed(
                    f"a server of an earlier version (process {holder}) uses the database: {path}",
                    hint="stop it, and start it again with this version",
                ) from exc


def _check_ours(path: Path, connection: sqlite3.Connection) -> int:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()[0]
    if tables and application != APPLICATION_ID:
        raise StartFailed(
            f"the database belongs to another program: {path}",
            hint="choose another data directory, or move the file away",
        )
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _migration_files(migrations: Path) -> dict[int, Path]:
    return {int(file.name[:4]): file for file in migrations.glob("[0-9][0-9][0-9][0-9]_*.sql")}


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def _run_statements(connection: sqlite3.Connection, script: str) -> None:
    # Not `executescript`: it commits the transaction it is in.
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    connection.execute(statement)


def _copy(path: Path, to: Path) -> None:
    # Made first, so that it is never readable by others.
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with contextlib.closing(
            sqlite3.connect(_uri(path, "ro"), uri=True, isolation_level=None)
        ) as connection:
            connection.execute("VACUUM INTO ?", (str(to),))
        _flush(to)
    except BaseException:
        to.unlink()
        raise


def _flush(file: Path) -> None:
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def copy_running(path: Path, to: Path) -> None:
    """Copy the database of a server that may be running, by SQLite's own backup; mode 0600.

    Raises StartFailed if it cannot be read, is none of ours, or the copy cannot be written.
    """
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        with (
            contextlib.closing(sqlite3.connect(_uri(path, "rw"), uri=True)) as source,
            contextlib.closing(sqlite3.connect(to)) as copy,
        ):
            _check_ours(path, source)
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        _flush(to)
    except BaseException as exc:
        to.unlink()
        if isinstance(exc, sqlite3.Error):
            raise StartFailed(f"the database cannot be copied ({exc}): {path}") from exc
        raise


def check_file(path: Path) -> list[str]:
    """Return what is wrong with a database that nobody writes to now; nothing if it is whole."""
    try:
        with contextlib.closing(sqlite3.connect(_uri(path, "ro"), uri=True)) as connection:
            version = _check_ours(path, connection)
            newest = max(_migration_files(MIGRATIONS))
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            lost = connection.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as exc:
        return [f"it cannot be read: {exc}"]
    problems = [text for text in found if text != "ok"]
    problems += [
        f"a row of `{row[0]}` points to one of `{row[2]}` that is not there" for row in lost
    ]
    if version > newest:
        problems.append(f"it has version {version}, this program knows up to {newest}")
    return problems


def read_foreign(path: Path, table: str, *, most_rows: int) -> list[dict[str, Any]]:
    """Return the rows of a table of another program's database; none where it has no such table.

    What is in the file may be broken, or made to harm. Nobody may use it meanwhile; a transaction
    that was broken off in it is undone. Raises BadRequest where it cannot be read.
    """
    steps = iter(range(_FOREIGN_STEPS))
    try:
        with contextlib.closing(
            sqlite3.connect(_uri(path, "rw"), uri=True, isolation_level=None)
        ) as connection:
            connection.row_factory = Row
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _FOREIGN_LENGTH)
            connection.set_progress_handler(lambda: next(steps, None) is None, _FOREIGN_STEP)
            connection.execute("PRAGMA trusted_schema = OFF")
            # Neither a view nor a virtual table, which would run what the file says.
            known = connection.execute(_FOREIGN_TABLE, {"name": table}).fetchone()
            if known is None:
                return []
            rows = connection.execute(f'SELECT * FROM "{table}" LIMIT ?', (most_rows,))  # noqa: S608  # the name of a table that there is
            return [dict(row) for row in rows]
    except sqlite3.Error as exc:
        raise BadRequest(f"The database cannot be read: {exc}") from exc


def vacuum_file(path: Path) -> None:
    """Write the file anew without the room that nothing needs; raises StartFailed."""
    try:
        with contextlib.closing(
            sqlite3.connect(_uri(path, "rw"), uri=True, isolation_level=None)
        ) as connection:
            _check_ours(path, connection)
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as exc:
        hint = _HINTS.get(_primary_code(exc), HINT_ACCESS)
        raise StartFailed(
            f"the database cannot be written anew ({exc}): {path}", hint=hint
        ) from exc


def render_schema(migrations: Path = MIGRATIONS) -> str:
    """Return the sum of all migrations as one script: what `schema.sql` holds."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        files = _migration_files(migrations)
        for number in sorted(files):
            _run_statements(connection, files[number].read_text("utf-8"))
        rows = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
    head = "-- Generated from the migrations by agentsvc.db.write_schema; do not edit.\n"
    return head + "".join(f"\n{sql};\n" for (sql,) in rows)


def write_schema(to: Path = MIGRATIONS / "schema.sql") -> None:
    """Bring the generated schema file up to date."""
    to.write_text(render_schema(), "utf-8")


@contextlib.contextmanager
def lock_data_dir(path: Path) -> Iterator[None]:
    """Hold a data directory for this process, so that no second server uses it.

    Raises StartFailed, naming the directory, when another one holds it. The lock ends with
    the process, however that ends; the lock file stays and means nothing by itself.
    """
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        message = f"the data directory cannot be used: {path}"
        raise StartFailed(message, hint=hint_against(exc), detail=str(exc)) from exc
    try:
        _take_lock(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as exc:
        holder = os.read(descriptor, 20).decode(errors="replace").strip()
        raise StartFailed(
            f"another agentsvc (process {holder or 'unknown'}) uses the data directory: {path}",
            hint="stop it, or give this one another `--data-dir`",
        ) from exc
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
