"""Connections to the SQLite file, and transactions on them.

Only this module and `agentsvc.storage.database_file` open a database. SQL is in the package that owns the
table: in one module if several need it, otherwise next to its caller.
"""

import asyncio
import contextlib
import contextvars
import itertools
import logging
import sqlite3
import time
from collections import deque
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
    Sized,
)
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import aiosqlite
import msgspec

from agentsvc.base import DatabaseBusy, NotFound, monotonic
from agentsvc.storage.database_file import (
    MIGRATIONS,
    connect,
    connect_options,
    connect_writer,
    prepare,
    primary_code,
    uri,
)
from agentsvc.storage.disk_faults import is_disk_fault, read_error, write_error
from agentsvc.storage.queries import NO_PARAMS, Params, Queryable, Row
from agentsvc.storage.query_cache import QueryCache

log = logging.getLogger(__name__)

_READERS = 3
_STEP_INSTRUCTIONS = 1000
"""SQLite instructions between two calls of the progress handler: some twenty microseconds."""
_MAX_STEPS = 50
"""How many of these calls a query may take on the event loop: about one millisecond.

Not a wall-clock limit, because on a busy machine everything takes longer, and a thread does not help.
"""
_MAX_CPU_SECONDS = 0.02
"""The CPU time limit of a query as well, because one instruction may scan a long text."""
_SLOW_SECONDS = 10.0
"""How long a slow statement is run in a thread at once, before the event loop is tried again."""
_LARGEST_BATCH = 64


class _Connection(Protocol):
    """Runs functions with a SQLite connection."""

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`."""


class _WriterThread:
    """The writing connection, in a thread of its own, which runs one call after the other."""

    def __init__(self, thread: ThreadPoolExecutor, raw: sqlite3.Connection) -> None:
        self._thread = thread
        self._raw = raw

    @classmethod
    async def open(cls, path: Path, busy_seconds: float) -> "_WriterThread":
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="database")
        loop = asyncio.get_running_loop()
        return cls(thread, await loop.run_in_executor(thread, connect_writer, path, busy_seconds))

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        # A call that was started runs to its end, in order, even if its caller is cancelled.
        loop = asyncio.get_running_loop()
        return await asyncio.shield(loop.run_in_executor(self._thread, work, self._raw))

    async def close(self) -> None:
        await self.call(sqlite3.Connection.close)
        self._thread.shutdown(wait=False)


class _InlineConnection:
    """A connection that is used in the caller's thread."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    async def call[T](self, work: Callable[[sqlite3.Connection], T]) -> T:
        return work(self._raw)


class Reader(Queryable):
    """Runs queries in one snapshot of the database."""

    def __init__(self, fetch: Callable[[str, Params], Awaitable[Iterable[Row]]]) -> None:
        self._fetch = fetch

    async def all(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        """Return every row of a query."""
        return list(await self._fetch(sql, params))


class _Result[T](NamedTuple):
    """The result of a body, which may be None."""

    result: T


class _Readers:
    """Read-only connections: one on the event loop, and some with threads of their own.

    An indexed query takes less time than passing it to a thread and its rows back, so it runs on the
    event loop. A query that exceeds its limits is interrupted and run again in a thread; for a while
    after that, the same statement goes to a thread at once.
    """

    def __init__(self, raw: sqlite3.Connection, others: list[aiosqlite.Connection]) -> None:
        self._raw = raw
        self._others = others
        self._idle: asyncio.LifoQueue[aiosqlite.Connection] = asyncio.LifoQueue()
        for other in others:
            self._idle.put_nowait(other)
        self._slow: dict[str, float] = {}
        self._unknown = itertools.count(-1, -1)
        self._reset_limits()
        raw.set_progress_handler(self._is_over_limit, _STEP_INSTRUCTIONS)

    @classmethod
    async def open(cls, path: Path, busy_seconds: float) -> "_Readers":
        """Connect; the connection on the event loop never waits for a lock."""
        # At debug level it would log every statement with its values.
        logging.getLogger("aiosqlite").setLevel(logging.WARNING)
        async with contextlib.AsyncExitStack() as opened:
            others = [
                await opened.enter_async_context(
                    aiosqlite.connect(uri(path, "ro"), **connect_options(busy_seconds))
                )
                for _ in range(_READERS)
            ]
            raw = await asyncio.to_thread(connect, path, "ro", 0)
            opened.pop_all()
        for other in others:
            other.row_factory = Row
        return cls(raw, others)

    async def all(self, sql: str, params: Params) -> list[Row]:
        """Return the rows of one query."""
        work = partial(_fetch_all, self._raw, sql, params)
        rows = self._try_inline(sql, work)
        if rows is not None:
            return rows
        async with self._acquire() as connection:
            return list(await connection.execute_fetchall(sql, params))

    async def read[T](self, body: Callable[[Reader], Awaitable[T]]) -> T:
        """Run the body in a snapshot and return its result; the body may be started twice."""
        done = self._try_inline(getattr(body, "__qualname__", ""), partial(self._in_snapshot, body))
        if done is not None:
            return done.result
        async with self._acquire() as connection:
            await connection.execute("BEGIN")
            return await body(Reader(connection.execute_fetchall))

    def version(self) -> int:
        """Return a number that changes once any process has written to the database."""
        self._reset_limits()
        try:
            return int(self._raw.execute("PRAGMA data_version").fetchone()[0])
        except sqlite3.Error:
            # The next query will raise the error; until it is over, every state counts as changed.
            return next(self._unknown)

    async def close(self) -> None:
        """Wait for the reads that have begun and disconnect."""
        for _ in self._others:
            other = await self._idle.get()
            await other.close()
        self._raw.close()

    def _reset_limits(self) -> None:
        self._steps, self._cpu_deadline = 0, time.thread_time() + _MAX_CPU_SECONDS

    def _is_over_limit(self) -> bool:
        self._steps += 1
        return self._steps > _MAX_STEPS or time.thread_time() > self._cpu_deadline

    def _try_inline[T](self, name: str, work: Callable[[], T]) -> T | None:
        """Return the result of `work`, or None if it is slow or the database is locked."""
        if name in self._slow and monotonic() < self._slow[name]:
            return None
        self._reset_limits()
        try:
            return work()
        except sqlite3.OperationalError as exc:
            if primary_code(exc) not in (sqlite3.SQLITE_INTERRUPT, sqlite3.SQLITE_BUSY):
                raise
            self._slow[name] = monotonic() + _SLOW_SECONDS
            return None
        finally:
            _end_snapshot(self._raw)

    def _in_snapshot[T](self, body: Callable[[Reader], Awaitable[T]]) -> "_Result[T]":
        self._raw.execute("BEGIN")
        return _Result(_finish(_call(body, Reader(partial(_fetch, _InlineConnection(self._raw))))))

    @contextlib.asynccontextmanager
    async def _acquire(self) -> AsyncIterator[aiosqlite.Connection]:
        connection = await self._idle.get()
        try:
            yield connection
        finally:
            # An open snapshot would prevent checkpoints of the write-ahead log.
            try:
                await asyncio.shield(connection.rollback())
            finally:
                self._idle.put_nowait(connection)


class Transaction(Reader):
    """Queries and changes that are committed together, or not at all."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__(partial(_fetch, connection))
        self._connection = connection
        self.callbacks: list[Callable[[], None]] = []

    async def run(self, sql: str, params: Params = NO_PARAMS) -> int:
        """Run one statement and return the number of changed rows."""
        return await self._connection.call(lambda raw: raw.execute(sql, params).rowcount)

    async def insert(self, table: str, row: Mapping[str, Any], otherwise: str = "") -> int:
        """Insert a row, given by column names; `otherwise` may be an ON CONFLICT clause."""
        columns = ", ".join(f'"{name}"' for name in row)
        places = ", ".join(f":{name}" for name in row)
        sql = ("INSERT INTO", table, f"({columns})", f"VALUES ({places})", otherwise)
        return await self.run(" ".join(sql), row)

    async def run_many(self, sql: str, rows: Iterable[Params | Sequence[Any]]) -> None:
        """Run one statement for each row of parameters, named or, at a lower cost, positional."""
        await self._connection.call(lambda raw: raw.executemany(sql, rows))

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the commit, before the caller of `write` continues.

        It is not called if the body or the commit fails.
        """
        self.callbacks.append(callback)


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    """A body in the queue of writes."""

    body: Callable[[Transaction], Awaitable[Any]]
    done: asyncio.Future[Any]
    context: contextvars.Context
    is_apart: bool
    task: str
    """The name of the task that waits for it: a request or a background task."""

    @property
    def name(self) -> str:
        """The body and the task that waits for it, for the log."""
        does = getattr(self.body, "__qualname__", "").partition(".<locals>")[0]
        return f"{does} for {self.task}"


class _Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A body that has run and is not committed yet."""

    job: _Job
    callbacks: list[Callable[[], None]]
    result: Any = None
    failure: BaseException | None = None


class _Batch:
    """Bodies that share a commit: after the last one, if no other is waiting."""

    def __init__(self) -> None:
        self.tried: list[_Job] = []
        self.attempts: list[_Attempt] = []
        self.is_durable = False
        self._is_first = True

    def begin(self, raw: sqlite3.Connection) -> None:
        # The first body can be undone with the whole transaction; savepoints cost a copy of each page.
        self._is_first = not raw.in_transaction
        raw.execute("BEGIN IMMEDIATE" if self._is_first else "SAVEPOINT body")

    def end(self, failure: BaseException | None, waiting: Sized, raw: sqlite3.Connection) -> None:
        if not raw.in_transaction:
            # A full disk or an I/O error makes SQLite undo all of the transaction, so the result of
            # the body is void.
            raise sqlite3.OperationalError("SQLite rolled the transaction back") from failure
        if failure and self._is_first:
            # Nothing else is in the transaction: the next body starts a new batch.
            raw.execute("ROLLBACK")
            self.is_durable = True
            return
        if failure:
            raw.execute("ROLLBACK TO body")
        if not self._is_first:
            raw.execute("RELEASE body")
        if not waiting or len(self.tried) >= _LARGEST_BATCH:
            raw.commit()
            self.is_durable = True


class Database(Queryable):
    """One SQLite file: a queue of writers that share commits, and a pool of readers."""

    def __init__(self, path: Path, writer: _WriterThread, readers: _Readers) -> None:
        self.path = path
        """The path of the file."""
        self._writer = writer
        self._readers = readers
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._is_open = True
        self._is_closed = False
        self._kept = QueryCache(readers.version)
        self._body: asyncio.Task[Any] | None = None
        self._writing = asyncio.create_task(self._write_until_closed(), name="database writer")

    @classmethod
    async def open(
        cls, path: Path, *, migrations: Path = MIGRATIONS, busy_seconds: float = 5
    ) -> "Database":
        """Open the file, created with mode 0600 if absent, and run all pending migrations.

        A file with data is copied before it is migrated. Raises StartFailed, with a hint, for
        a file that is newer than the code, is another program's, is locked or not writable.
        """
        await asyncio.to_thread(prepare, path, migrations, busy_seconds)
        readers = await _Readers.open(path, busy_seconds)
        return cls(path, await _WriterThread.open(path, busy_seconds), readers)

    async def write[T](self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run the body in a transaction and return its result once that is durable.

        Bodies run one at a time in the order of their calls, and await nothing but the
        transaction. If one raises, only its own changes are undone. Once called, the body runs to
        its end even if the caller is cancelled. Raises DiskFull if the disk is full, another
        StorageFailed if the storage fails otherwise, and NotFound if a row that the changes refer to
        was deleted meanwhile.
        """
        if asyncio.current_task() is self._body:
            raise RuntimeError("a transaction cannot wait for another one")
        return await self._enqueue(body, is_apart=False)

    async def write_apart[T](self, body: Callable[[Transaction], Awaitable[T]]) -> T:
        """Like `write`, with the body run in the writer's thread: for frequent writes.

        No other thread may change what the body uses. Side effects on anything but the database and the
        body's own variables belong into `after_commit`.
        """
        return await self._enqueue(body, is_apart=True)

    async def read[T](self, body: Callable[[Reader], Awaitable[T]]) -> T:
        """Run queries in one snapshot; they never wait for writers.

        The body awaits nothing but the reader, and may be started twice. Like every query, it raises
        StorageFailed if the disk cannot be read.
        """
        return await self._read(self._readers.read(body))

    async def all(self, sql: str, params: Params = NO_PARAMS) -> list[Row]:
        """Return every row of a query."""
        return await self._read(self._readers.all(sql, params))

    async def keep[T](
        self,
        key: tuple[object, ...],
        read: Callable[[], Awaitable[T]],
        *,
        weigh: Callable[[T], int] | None = None,
    ) -> T:
        """Return a cached result, valid until any process writes to the database.

        It must depend on the key and on the stored data only. `weigh` returns its size in rows or KiB,
        if that is more than one.
        """
        return await self._kept.get(key, read, weigh)

    async def close(self) -> None:
        """Finish all queued and running work, then close; idempotent."""
        self._is_open = False
        self._wake.set()
        await asyncio.wait([self._writing])
        if not self._is_closed:
            self._is_closed = True
            await self._readers.close()
            await self._writer.close()

    async def _read[T](self, reading: Coroutine[Any, Any, T]) -> T:
        try:
            self._check_open()
            return await reading
        except sqlite3.Error as exc:
            # The plain code means that a reader's body tries to write, which is no fault of the disk.
            if not is_disk_fault(exc) or exc.sqlite_errorcode == sqlite3.SQLITE_READONLY:
                raise
            raise read_error(exc) from exc
        finally:
            reading.close()

    async def _enqueue[T](
        self, body: Callable[[Transaction], Awaitable[T]], *, is_apart: bool
    ) -> T:
        self._check_open()
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        context = contextvars.copy_context()
        current = asyncio.current_task()
        task = current.get_name() if current else ""
        self._jobs.append(_Job(body=body, done=done, context=context, is_apart=is_apart, task=task))
        self._wake.set()
        return await done

    def _check_open(self) -> None:
        if not self._is_open:
            raise DatabaseBusy("The server is stopping", detail="the database is closed")

    async def _write_until_closed(self) -> None:
        while self._is_open or self._jobs:
            await self._wake.wait()
            self._wake.clear()
            while self._jobs:
                await self._write_batch()

    async def _write_batch(self) -> None:
        batch = _Batch()
        try:
            while not batch.is_durable:
                if self._jobs[0].is_apart:
                    await self._writer.call(partial(self._attempt_apart, batch))
                else:
                    await self._attempt(batch)
        except sqlite3.Error as exc:
            await self._undo()
            lost = batch.tried or self._take_all()
            _log_lost(lost, exc)
            for job in lost:
                if not job.done.done():
                    job.done.set_exception(write_error(exc))
        else:
            self._kept.forget()
            for attempt in batch.attempts:
                _complete(attempt)

    async def _attempt(self, batch: _Batch) -> None:
        tx = Transaction(self._writer)
        await self._writer.call(batch.begin)
        job = self._jobs.popleft()
        batch.tried.append(job)
        task = asyncio.create_task(_call(job.body, tx), name="write", context=job.context)
        self._body = task
        await asyncio.wait([task])
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        result = None if failure else task.result()
        batch.attempts.append(
            _Attempt(job=job, callbacks=tx.callbacks, result=result, failure=failure)
        )
        await self._writer.call(partial(batch.end, failure, self._jobs))

    async def _undo(self) -> None:
        # If the rollback fails as well, so does the next BEGIN, and its callers get the error.
        with contextlib.suppress(sqlite3.Error):
            await self._writer.call(sqlite3.Connection.rollback)

    def _attempt_apart(self, batch: _Batch, raw: sqlite3.Connection) -> None:
        """Run the next bodies while they are of `write_apart`; the event loop may add others."""
        while not batch.is_durable and self._jobs[0].is_apart:
            batch.begin(raw)
            job = self._jobs.popleft()
            batch.tried.append(job)
            attempt = _attempt_inline(job, raw)
            batch.attempts.append(attempt)
            batch.end(attempt.failure, self._jobs, raw)

    def _take_all(self) -> list[_Job]:
        jobs = list(self._jobs)
        self._jobs.clear()
        return jobs


async def _call[R: Reader, T](body: Callable[[R], Awaitable[T]], tx: R) -> T:
    return await body(tx)


def _attempt_inline(job: _Job, raw: sqlite3.Connection) -> _Attempt:
    tx = Transaction(_InlineConnection(raw))
    result, failure = None, None
    try:
        result = job.context.run(_finish, _call(job.body, tx))
    except (Exception, asyncio.CancelledError) as exc:  # noqa: BLE001  # its caller hears it
        failure = exc
    return _Attempt(job=job, callbacks=tx.callbacks, result=result, failure=failure)


def _finish[T](body: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end."""
    try:
        body.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    body.close()
    raise RuntimeError("this body can wait for nothing but the queries of its transaction")


def _fetch_all(raw: sqlite3.Connection, sql: str, params: Params) -> list[Row]:
    return raw.execute(sql, params).fetchall()


def _fetch(connection: _Connection, sql: str, params: Params) -> Awaitable[list[Row]]:
    return connection.call(lambda raw: _fetch_all(raw, sql, params))


def _complete(attempt: _Attempt) -> None:
    job, failure = attempt.job, attempt.failure
    if isinstance(failure, asyncio.CancelledError):
        job.done.cancel()
    elif failure:
        _fail(job, _caller_error(failure))
    else:
        # The event loop runs these before it wakes the caller, and logs exceptions.
        for callback in attempt.callbacks:
            job.done.get_loop().call_soon(callback, context=job.context)
        if not job.done.done():
            job.done.set_result(attempt.result)


def _caller_error(failure: BaseException) -> BaseException:
    """Return the error to raise to the caller of a failed body."""
    if is_disk_fault(failure):
        return write_error(failure)
    if getattr(failure, "sqlite_errorcode", None) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
        # The referenced row existed when the body looked it up.
        error = NotFound("A record that this refers to was deleted meanwhile", detail=str(failure))
        error.__cause__ = failure
        return error
    return failure


def _log_lost(lost: Sequence[_Job], cause: sqlite3.Error) -> None:
    """Log once which writes were lost; `untold` are those whose callers do not get the error."""
    log.error(
        "transaction failed, its changes are lost",
        extra={
            "reason": f"{cause}: {cause.__cause__}" if cause.__cause__ else str(cause),
            "writes": len(lost),
            "lost": [job.name for job in lost],
            "untold": [job.name for job in lost if job.done.done()],
        },
    )


def _fail(job: _Job, failure: BaseException) -> None:
    if job.done.done():
        log.warning("write failed after its caller was cancelled", extra={"reason": repr(failure)})
    else:
        job.done.set_exception(failure)


def _end_snapshot(raw: sqlite3.Connection) -> None:
    if raw.in_transaction:
        # If a disk fault prevents the rollback, the next user of the connection repeats it.
        with contextlib.suppress(sqlite3.Error):
            raw.rollback()
