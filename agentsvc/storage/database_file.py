"""The SQLite file: creation, migration, copies, checks, and the lock of its data directory.

Only this module and `agentsvc.storage.database` open a database.
"""

import contextlib
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from agentsvc.base import (
    HINT_ACCESS,
    HINT_ROOM,
    BadRequest,
    StartFailed,
    flush,
    hint_against,
    values,
)

log = logging.getLogger(__name__)

MIGRATIONS: Final = Path(__file__).parent / "migrations"
APPLICATION_ID: Final = 0x61737663
"""`asvc`: distinguishes our files from those of other programs."""

NEWER: Final = "this program knows up to"
"""Part of `check_file`'s message about a database of a newer release."""

_COPY_PAGES: Final = 1024
_FOREIGN_LENGTH: Final = 16 * 1024 * 1024
_FOREIGN_STEP: Final = 1_000_000
_FOREIGN_STEPS: Final = 300
_HAS_TABLE: Final = (
    "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = :name AND rootpage > 0"
)


_WRITER_SETUP: Final = """
    PRAGMA synchronous = FULL;
    PRAGMA foreign_keys = ON;
    PRAGMA journal_size_limit = 67108864;
"""


def connect_options(busy_seconds: float) -> dict[str, Any]:
    """Return the arguments for a connection of the server."""
    return {
        "uri": True,
        "isolation_level": None,
        "timeout": busy_seconds,
        "cached_statements": 256,
    }


def connect(path: Path, mode: str, busy_seconds: float) -> sqlite3.Connection:
    """Open a connection with a mode of SQLite URIs, such as `ro`."""
    # Connections are used by several threads, one at a time.
    connection: sqlite3.Connection = sqlite3.connect(
        uri(path, mode), check_same_thread=False, **connect_options(busy_seconds)
    )
    connection.row_factory = sqlite3.Row
    return connection


def connect_writer(path: Path, busy_seconds: float) -> sqlite3.Connection:
    """Open the writing connection."""
    connection = connect(path, "rw", busy_seconds)
    connection.executescript(_WRITER_SETUP)
    return connection


def prepare(path: Path, migrations: Path, busy_seconds: float) -> None:
    """Create or migrate the database; raises StartFailed if that fails."""
    try:
        path.touch(mode=0o600)
        with contextlib.closing(
            sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
        ) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            _migrate(path, connection, migrations)
    except OSError as exc:
        message = f"the database cannot be opened ({exc.strerror}): {path}"
        raise StartFailed(message, hint=hint_against(exc), detail=str(exc)) from exc
    except sqlite3.Error as exc:
        message = f"the database cannot be used ({exc}): {path}"
        hint = _HINTS.get(primary_code(exc), HINT_ACCESS)
        raise StartFailed(message, hint=hint) from exc


_HINTS = {
    sqlite3.SQLITE_BUSY: "stop the other program that uses the file, then start again",
    sqlite3.SQLITE_NOTADB: "move the file away to start with a new database, or restore a backup",
    sqlite3.SQLITE_CORRUPT: "restore a backup; keep the damaged file until that has worked",
    sqlite3.SQLITE_FULL: HINT_ROOM,
    # SQLite also reports this if there is no room for the memory shared by readers and writers.
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
        _refuse_running_server(path)
    # A failed migration leaves no copy: it is retried at each start.
    with contextlib.ExitStack() as undo:
        with _transaction(connection):
            # Another program may have migrated it meanwhile; from here on none can write.
            version = _find_version(path, connection, newest)
            if version == newest:
                return
            draft = path.with_name(f"{path.name}.copy")
            if version:
                draft.unlink(missing_ok=True)
                copy_to(path, draft)
                undo.callback(draft.unlink, missing_ok=True)
            _apply(connection, {number: files[number] for number in files if number > version})
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {newest}")
            if version:
                # Renamed only now: a draft left by a kill is not mistaken for a copy, and is overwritten.
                copy = path.with_name(f"{path.name}.v{version}-{values.now():%Y%m%dT%H%M%S%f}")
                draft.rename(copy)
                undo.callback(copy.unlink)
                flush(path.parent)
                log.info("database copied before its migration", extra={"path": str(copy)})
        undo.pop_all()
    log.info("database migrated", extra={"from_version": version, "to_version": newest})


def _find_version(path: Path, connection: sqlite3.Connection, newest: int) -> int:
    version = _check_ours(path, connection)
    if version > newest:
        raise StartFailed(
            f"the database has version {version}, {NEWER} {newest}: {path}",
            hint="install the newer release again, or restore a backup made before it",
        )
    return version


def _refuse_running_server(path: Path) -> None:
    """Raise StartFailed if a running server of an earlier version uses the database."""
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


def statements_of(script: str) -> Iterator[str]:
    """Yield the statements of an SQL script."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    yield statement


def _apply(connection: sqlite3.Connection, migrations: dict[int, Path]) -> None:
    for _, file in sorted(migrations.items()):
        # Not `executescript`, which commits the open transaction.
        for statement in statements_of(file.read_text("utf-8")):
            connection.execute(statement)


def copy_to(path: Path, to: Path) -> None:
    """Write a compacted copy of the committed data to a new file, mode 0600; no file on failure."""
    with _new_file(to), _opened(path, "ro") as connection:
        connection.execute("VACUUM INTO ?", (str(to),))


@contextlib.contextmanager
def _opened(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """Open a connection for one use, without the server's settings."""
    with contextlib.closing(
        sqlite3.connect(uri(path, mode), uri=True, isolation_level=None)
    ) as connection:
        yield connection


@contextlib.contextmanager
def _new_file(to: Path) -> Iterator[None]:
    """Create a file and flush it to disk; remove it if the body raises."""
    # Created first with its mode, so that others can never read it.
    os.close(os.open(to, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        yield
        flush(to)
        flush(to.parent)
    except BaseException:
        to.unlink()
        # SQLite leaves its journal behind if the disk is full.
        to.with_name(f"{to.name}-journal").unlink(missing_ok=True)
        raise


def copy_running(path: Path, to: Path) -> None:
    """Copy the database of a server that may be running, by SQLite's backup API; mode 0600.

    Raises StartFailed if it cannot be read, is another program's, or the copy cannot be written.
    """
    try:
        with _new_file(to), _opened(path, "rw") as source, _opened(to, "rw") as copy:
            # One snapshot for all steps: otherwise a write by another process would restart the copy.
            source.execute("BEGIN")
            _check_ours(path, source)
            # In steps, because Python handles signals only between calls.
            source.backup(copy, pages=_COPY_PAGES, progress=lambda *_: None)
            copy.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.Error as exc:
        raise StartFailed(f"the database cannot be copied ({exc}): {path}") from exc


def check_file(path: Path) -> list[str]:
    """Return the problems of a database that nobody writes to now; empty if it is intact."""
    try:
        with _opened(path, "ro") as connection:
            version = _check_ours(path, connection)
            newest = max(_migration_files(MIGRATIONS))
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
            lost = connection.execute("PRAGMA foreign_key_check").fetchall()
    except sqlite3.Error as exc:
        return [f"it cannot be read: {exc}"]
    problems = [text for text in found if text != "ok"]
    problems += [f"a row of `{row[0]}` references a missing row of `{row[2]}`" for row in lost]
    if version > newest:
        problems.append(f"it has version {version}, {NEWER} {newest}")
    return problems


def check_schema(path: Path) -> list[str]:
    """Return differences to the schema of the migrations; nobody may write to the database now.

    Indexes are ignored. A foreign trigger or view would be run by this server's statements.
    """
    try:
        with (
            _opened(path, "ro") as connection,
            contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as known,
        ):
            version = _check_ours(path, connection)
            files = _migration_files(MIGRATIONS)
            _apply(known, {number: files[number] for number in files if number <= version})
            found, wanted = _objects(connection), _objects(known)
    except sqlite3.Error as exc:
        return [f"it cannot be read: {exc}"]
    if not wanted:
        return ["it is empty"]
    return [
        f"it has an unexpected, or lacks the, {kind} `{name}`"
        for kind, name, _ in sorted(found ^ wanted)
    ]


def _objects(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    """Return tables by name, and triggers, views and virtual tables with their definition.

    Ordinary tables of plugins are left out.
    """
    rows = connection.execute(
        "SELECT type, name, CASE WHEN type != 'table' THEN sql WHEN rootpage = 0 THEN 'virtual'"
        " ELSE '' END FROM sqlite_schema WHERE type != 'index' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
        " AND NOT (type = 'table' AND rootpage != 0 AND name LIKE 'plugin!_%' ESCAPE '!')"
    )
    return {(str(kind), str(name), str(sql)) for kind, name, sql in rows}


def read_installation(path: Path) -> dict[str, str]:
    """Return the recorded installation of a database that `check_file` has found intact.

    Empty for a database from before this was recorded.
    """
    with _opened(path, "ro") as connection:
        is_there = connection.execute(_HAS_TABLE, {"name": "installation"}).fetchone()
        return dict(connection.execute("SELECT name, value FROM installation") if is_there else ())


def read_foreign(path: Path, table: str, *, max_rows: int) -> list[dict[str, Any]]:
    """Return the rows of a table of another program's database; empty if it has no such table.

    The file may be damaged or malicious. Nobody may use it meanwhile; an interrupted transaction in it
    is rolled back. Raises BadRequest if it cannot be read.
    """
    steps = iter(range(_FOREIGN_STEPS))
    try:
        with _opened(path, "rw") as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _FOREIGN_LENGTH)
            connection.set_progress_handler(lambda: next(steps, None) is None, _FOREIGN_STEP)
            connection.execute("PRAGMA trusted_schema = OFF")
            # Neither a view nor a virtual table, which would run code from the file.
            known = connection.execute(_HAS_TABLE, {"name": table}).fetchone()
            if known is None:
                return []
            rows = connection.execute(f'SELECT * FROM "{table}" LIMIT ?', (max_rows,))  # noqa: S608  # the name of a table that there is
            return [dict(row) for row in rows]
    except sqlite3.Error as exc:
        raise BadRequest(f"The database cannot be read: {exc}") from exc


def vacuum_file(path: Path) -> None:
    """Rewrite the file without unused space; raises StartFailed."""
    try:
        with _opened(path, "rw") as connection:
            _check_ours(path, connection)
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.Error as exc:
        hint = _HINTS.get(primary_code(exc), HINT_ACCESS)
        raise StartFailed(f"the database cannot be vacuumed ({exc}): {path}", hint=hint) from exc


def render_schema(migrations: Path = MIGRATIONS) -> str:
    """Return the result of all migrations as one script: the contents of `schema.sql`."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        _apply(connection, _migration_files(migrations))
        rows = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
    head = "-- Generated from the migrations by agentsvc.storage.database_file.write_schema; do not edit.\n"
    return head + "".join(f"\n{sql};\n" for (sql,) in rows)


def write_schema(to: Path = MIGRATIONS / "schema.sql") -> None:
    """Update the generated schema file."""
    to.write_text(render_schema(), "utf-8")


@contextlib.contextmanager
def lock_data_dir(path: Path) -> Iterator[None]:
    """Lock a data directory for this process, so that no second server uses it.

    Removes the recorded URL of a former server, which may belong to another one now.
    Raises StartFailed, naming the directory, if another process holds the lock. The lock ends
    with the process, however that ends; the lock file stays and has no meaning by itself.
    """
    try:
        descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        message = f"the data directory cannot be used ({exc.strerror}): {path}"
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
    with contextlib.suppress(OSError):
        (path / "url").unlink()


def uri(path: Path, mode: str) -> str:
    """Return the URI of an existing database file, to read (`ro`) or write (`rw`)."""
    return f"{path.absolute().as_uri()}?mode={mode}"


def primary_code(failure: BaseException) -> int:
    """Return SQLite's primary error code, or 0 if the error has none."""
    # The attribute is absent on errors of the sqlite3 module; the upper bits only refine the code.
    return int(getattr(failure, "sqlite_errorcode", 0)) & 0xFF
