import asyncio
import contextlib
import os
import sqlite3
import tarfile
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backports import zstd
from click.testing import CliRunner, Result

from agentsvc.base.bus import EventBus
from agentsvc.base.values import Secret, new_id, now, to_stored
from agentsvc.cli import cli
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import EventQuery
from agentsvc.plugin.backend import IdleRules
from agentsvc.settings.fields import Settings
from agentsvc.settings.store import SettingsStore
from agentsvc.storage.database import Database
from agentsvc.storage.database_file import lock_data_dir
from agentsvc.storage.installation import Installation

USER = "a" * 32
OLD = to_stored(now() - timedelta(days=100))


def call(*arguments: object) -> Result:
    return CliRunner(env={"NO_COLOR": "1"}).invoke(cli, [str(one) for one in arguments])


def good(*arguments: object) -> Result:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result


async def in_installation[T](path: Path, body: Callable[[Installation], Awaitable[T]]) -> T:
    installation = await Installation.open(DataDirectory(path=path))
    try:
        installation.read_id()
        return await body(installation)
    finally:
        await installation.close()


def store_model_key(path: Path) -> None:
    async def body(installation: Installation) -> None:
        await insert(
            installation.database, "users", id=USER, name="ann", role="admin", created_at=OLD
        )
        settings = SettingsStore(installation.database, installation.vault)
        await settings.change(
            USER, lambda old: old or Settings(llm_model="a/b", llm_api_key=Secret("sk-sealed"))
        )

    asyncio.run(in_installation(path, body))


def model_key(path: Path) -> str:
    async def body(installation: Installation) -> str:
        found = await SettingsStore(installation.database, installation.vault).find(USER)
        assert found is not None
        assert found.llm_api_key is not None
        return found.llm_api_key.reveal()

    return asyncio.run(in_installation(path, body))


async def insert(database: Database, table: str, **row: object) -> None:
    names, places = ", ".join(row), ", ".join(f":{name}" for name in row)
    sql = f"INSERT INTO {table} ({names}) VALUES ({places})"  # noqa: S608  # names of the schema
    await database.write(lambda tx: tx.run(sql, row))


async def insert_sandbox(database: Database, name: str, sealed: bytes = b"") -> None:
    texts = {"spec_id": "", "backend": "process", "target": "paused"}
    texts |= {"phase": "paused", "ready_by": ""}
    blobs = {"spec": b'{"id": ""}', "endpoints": b"{}", "facts": b"{}"}
    keys = {"session_key_hash": name, "session_key_sealed": sealed}
    times = {"created_at": OLD, "updated_at": OLD}
    await insert(database, "sandboxes", id=name, user_id=USER, **texts, **blobs, **keys, **times)


async def insert_conversation(database: Database, name: str, **more: object) -> None:
    texts = {"user_id": USER, "title_source": "default", "agent_kind": "openhands"}
    blobs = {"pr_number": b"[]", "facts": b"{}", "tags": b"{}"}
    times = {"created_at": OLD, "updated_at": OLD}
    await insert(database, "conversations", id=name, **texts, **blobs, **times, **more)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    places = DataDirectory(path=tmp_path / "data")
    places.prepare()
    store_model_key(places.path)
    return places.path


def test_a_backup_of_a_server_that_runs_is_restored_on_a_new_machine(
    data_dir: Path, tmp_path: Path
) -> None:
    file, there = tmp_path / "b.tar.gz", tmp_path / "there"
    with contextlib.closing(sqlite3.connect(data_dir / "agentsvc.db")) as database:
        # As plugins have some, which SQLite reads in databases that are trusted only.
        database.execute("CREATE TABLE plugin_example (body TEXT) STRICT")
        database.execute("CREATE INDEX by_name ON plugin_example (json_extract(body, '$.name'))")
    with lock_data_dir(data_dir):
        made = good("backup", file, "--data-dir", data_dir)
    assert made.stdout == ""
    assert file.stat().st_mode & 0o777 == 0o600
    restored = good("restore", file, "--data-dir", there)
    assert f"start it with `agentsvc serve --data-dir {there}`" in restored.stderr
    assert model_key(there) == "sk-sealed"
    assert (there / "instance-id").read_text() == (data_dir / "instance-id").read_text()
    assert (there / "master.key").stat().st_mode & 0o777 == 0o600
    again = call("restore", file, "--data-dir", there)
    assert again.exit_code == 1
    assert "already" in again.stderr


def test_a_backup_with_archives_leaves_out_what_is_gone_or_unfinished(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archives, file = data_dir / "archives", tmp_path / "b.tar.gz"
    archives.mkdir(exist_ok=True)
    kept, gone = (archives / f"{new_id()}.tar.zst" for _ in range(2))
    for path in (kept, gone, archives / f"{new_id()}.part"):
        path.write_bytes(b"saved")
    listed = Path.iterdir

    def forgetting(directory: Path) -> Iterator[Path]:
        found = list(listed(directory))
        if directory == archives:
            gone.unlink()
        return iter(found)

    monkeypatch.setattr(Path, "iterdir", forgetting)
    good("backup", file, "--archives", "--data-dir", data_dir)
    with tarfile.open(file) as written:
        assert [one for one in written.getnames() if one.startswith("archives/")] == [
            f"archives/{kept.name}"
        ]


def test_a_backup_has_what_links_lead_to(data_dir: Path, tmp_path: Path) -> None:
    elsewhere, file, there = tmp_path / "elsewhere", tmp_path / "b.tar.gz", tmp_path / "there"
    elsewhere.mkdir()
    names = [f"{new_id()}.tar.zst" for _ in range(2)]
    (data_dir / "archives").mkdir()
    (data_dir / "archives" / names[0]).write_bytes(zstd.compress(bytes(1024)))
    # As programs leave it that look for files with the same content.
    (data_dir / "archives" / names[1]).hardlink_to(data_dir / "archives" / names[0])
    for name in ("archives", "master.key", "instance-id"):
        (data_dir / name).rename(elsewhere / name)
        (data_dir / name).symlink_to(elsewhere / name)
    good("backup", file, "--archives", "--data-dir", data_dir)
    good("restore", file, "--data-dir", there)
    assert model_key(there) == "sk-sealed"
    assert sorted(one.name for one in (there / "archives").iterdir()) == sorted(names)
    assert [one.name for one in there.iterdir() if one.is_symlink()] == []


def test_a_backup_has_the_master_key_of_its_moment(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, there, add = tmp_path / "b.tar.gz", tmp_path / "there", tarfile.TarFile.add

    def changing(archive: tarfile.TarFile, name: Path, arcname: str, **options: Any) -> None:
        add(archive, name, arcname, **options)
        if arcname == "agentsvc.db":
            good("keys", "rotate-master", "--data-dir", data_dir)

    monkeypatch.setattr(tarfile.TarFile, "add", changing)
    good("backup", file, "--data-dir", data_dir)
    good("restore", file, "--data-dir", there)
    assert model_key(there) == "sk-sealed"


def test_nothing_is_restored_beside_what_a_killed_server_had_not_written_to_its_database(
    data_dir: Path, tmp_path: Path
) -> None:
    file, there, unwritten = tmp_path / "b.tar.gz", tmp_path / "there", tmp_path / "unwritten"
    good("backup", file, "--data-dir", data_dir)

    async def store(installation: Installation) -> None:
        other = {"id": "b" * 32, "name": "bob", "role": "member", "created_at": OLD}
        await insert(installation.database, "users", **other)
        unwritten.write_bytes((there / "agentsvc.db-wal").read_bytes())

    DataDirectory(path=there).prepare()
    asyncio.run(in_installation(there, store))
    for name in ("agentsvc.db", "master.key", "instance-id"):
        (there / name).unlink()
    for name in ("agentsvc.db-wal", "agentsvc.db-shm", "agentsvc.db-journal"):
        (there / name).write_bytes(unwritten.read_bytes())
        result = call("restore", file, "--data-dir", there)
        assert (result.exit_code, name in result.stderr) == (1, True)
        (there / name).unlink()
    good("restore", file, "--data-dir", there)
    assert model_key(there) == "sk-sealed"


def test_what_was_being_started_is_not_started_where_a_backup_is_restored(
    data_dir: Path, tmp_path: Path
) -> None:
    file, there = tmp_path / "b.tar.gz", tmp_path / "there"

    async def store(installation: Installation) -> None:
        await insert_sandbox(installation.database, "made")
        await insert_sandbox(installation.database, "being made")
        sql = "UPDATE sandboxes SET handle = x'7b7d' WHERE id = 'made'"
        await installation.database.write(lambda tx: tx.run(sql, {}))
        texts = {"id": "spare", "state": "making", "backend": "process", "made_of": ""}
        blobs = {"spec": b"{}", "key_sealed": b"", "endpoints": b"[]"}
        await insert(installation.database, "spares", **texts, **blobs, created_at=OLD)

    async def read(installation: Installation) -> list[tuple[str, str]]:
        sql = "SELECT id, target FROM sandboxes UNION SELECT id, state FROM spares"
        return [(row["id"], row["target"]) for row in await installation.database.all(sql, {})]

    asyncio.run(in_installation(data_dir, store))
    good("backup", file, "--data-dir", data_dir)
    good("restore", file, "--data-dir", there)
    found = asyncio.run(in_installation(there, read))
    assert found == [("being made", "deleted"), ("made", "paused"), ("spare", "leaving")]


def test_a_backup_without_the_key_needs_it_again_and_takes_no_other(
    data_dir: Path, tmp_path: Path
) -> None:
    file, there = tmp_path / "b.tar.gz", tmp_path / "there"
    good("backup", file, "--without-key", "--data-dir", data_dir)
    with tarfile.open(file) as archive:
        assert "master.key" not in archive.getnames()
    without = call("restore", file, "--data-dir", there)
    assert (without.exit_code, "--key-file" in without.stderr) == (1, True)
    key = tmp_path / "other.key"
    for text, wrong in (
        ("A" * 43, f"{key} is not the one"),
        ("A", f"does not hold a key: {key}\n"),
    ):
        key.write_text(text)
        other = call("restore", file, "--key-file", key, "--data-dir", there)
        assert (other.exit_code, wrong in other.stderr) == (1, True)
        assert other.stderr.endswith("\nhint: pass the key of that installation with --key-file\n")
    os.truncate(key, 11 * 1024 * 1024)
    endless = call("restore", file, "--key-file", key, "--data-dir", there)
    assert "the file is longer than" in endless.stderr
    assert not (there / "agentsvc.db").exists()
    good("restore", file, "--key-file", data_dir / "master.key", "--data-dir", there)
    assert model_key(there) == "sk-sealed"


def test_what_is_no_backup_is_refused(data_dir: Path, tmp_path: Path) -> None:
    file, there = tmp_path / "b.tar.gz", tmp_path / "there"
    good("backup", file, "--data-dir", data_dir)
    cut, foreign = tmp_path / "cut.tar.gz", tmp_path / "foreign.tar.gz"
    cut.write_bytes(file.read_bytes()[:3000])
    with tarfile.open(foreign, "w:gz") as archive:
        archive.add(data_dir / "instance-id", "../instance-id")
    for bad in (cut, foreign):
        result = call("restore", bad, "--data-dir", there)
        assert result.exit_code == 1
        assert "error: " in result.stderr
        assert not there.exists()
    nowhere = call("backup", tmp_path / "no" / "b.tar.gz", "--data-dir", data_dir)
    assert nowhere.exit_code == 1
    why = "the backup cannot be written: No such file or directory"
    assert nowhere.stderr == f"error: {why}: {tmp_path}/no/b.tar.gz\n"
    assert call("backup", "", "--data-dir", data_dir).exit_code == 2


def test_a_backup_takes_the_place_of_files_only(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pipe, link, file = tmp_path / "pipe", tmp_path / "stdout", tmp_path / "b.tar.gz"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    endless = tmp_path / "endless"
    endless.symlink_to(endless)
    for bad in (pipe, link, endless, "-"):
        assert call("backup", bad, "--data-dir", data_dir).exit_code == 2
    good("backup", tmp_path / "-", "--data-dir", data_dir)
    (tmp_path / "-").unlink()
    assert (pipe.is_fifo(), link.is_symlink(), Path("-").exists()) == (True, True, False)
    link.unlink()
    before = {one.name: one.read_bytes() for one in data_dir.iterdir() if one.is_file()}
    link.symlink_to(data_dir / "agentsvc.db")
    names = (
        *("master.key", "master.key.former", "master.key.former.1", "master.key.next"),
        *("agentsvc.db-wal", "agentsvc.db.v3-20260101T000000", "lock", "url"),
        *(f"archives/{'0' * 32}.tar.zst", "backends/process/0/x"),
    )
    for own in (link, *map(data_dir.joinpath, names)):
        assert call("backup", own, "--data-dir", data_dir).exit_code == 2
    assert {one.name: one.read_bytes() for one in data_dir.iterdir() if one.is_file()} == before
    link.unlink()
    link.symlink_to(file)
    good("backup", link, "--data-dir", data_dir)
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o600)


def test_a_database_of_a_newer_release_is_not_called_damaged(
    data_dir: Path, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(data_dir / "agentsvc.db")) as database:
        database.execute("PRAGMA user_version = 9999")
    for words in (["db", "check"], ["backup", str(tmp_path / "b.tar.gz")]):
        told = call(*words, "--data-dir", data_dir)
        assert (told.exit_code, "damaged" in told.output) == (1, False)
        assert "it has version 9999, this program knows up to" in told.output


def test_a_damaged_database_is_told_and_not_backed_up(data_dir: Path, tmp_path: Path) -> None:
    assert good("db", "check", "--data-dir", data_dir).stdout == ""
    good("db", "vacuum", "--data-dir", data_dir)
    with sqlite3.connect(data_dir / "agentsvc.db") as connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("DELETE FROM users")
    connection.close()
    result = call("db", "check", "--data-dir", data_dir)
    assert result.exit_code == 1
    assert "a row of `settings` references a missing row of `users`" in result.stdout
    assert "error: the database is damaged: " in result.stderr
    refused = call("backup", tmp_path / "b.tar.gz", "--data-dir", data_dir)
    assert refused.exit_code == 1
    assert not (tmp_path / "b.tar.gz").exists()
    (data_dir / "agentsvc.db").write_bytes(b"no database, but something else" * 400)
    for command in ("check", "vacuum"):
        result = call("db", command, "--data-dir", data_dir)
        assert result.exit_code == 1
        assert "error: " in result.stderr


def test_a_new_master_key_opens_what_the_former_one_has_sealed(data_dir: Path) -> None:
    former = (data_dir / "master.key").read_text()
    with lock_data_dir(data_dir):
        running = call("keys", "rotate-master", "--data-dir", data_dir)
    assert (running.exit_code, "another agentsvc" in running.stderr) == (1, True)
    good("keys", "rotate-master", "--data-dir", data_dir)
    assert (data_dir / "master.key").read_text() != former
    assert (data_dir / "master.key.former").read_text() == former
    assert model_key(data_dir) == "sk-sealed"


def test_every_former_master_key_is_kept_for_the_backups_of_its_time(data_dir: Path) -> None:
    keys = []
    for _ in range(3):
        keys.append((data_dir / "master.key").read_text())
        good("keys", "rotate-master", "--data-dir", data_dir)
    ends = (".former.1", ".former.2", ".former")
    assert [(data_dir / f"master.key{end}").read_text() for end in ends] == keys


def test_a_change_of_the_master_key_that_broke_off_is_finished(data_dir: Path) -> None:
    former = (data_dir / "master.key").read_text()
    good("keys", "rotate-master", "--data-dir", data_dir)
    # As a power cut leaves it between the transaction and the swap of the files.
    (data_dir / "master.key").rename(data_dir / "master.key.next")
    (data_dir / "master.key.former").rename(data_dir / "master.key")
    refused = call("keys", "create", "--user", "bob", "--data-dir", data_dir)
    assert refused.exit_code == 0
    with pytest.raises(Exception, match="is not the one"):
        model_key(data_dir)
    good("keys", "rotate-master", "--data-dir", data_dir)
    assert (data_dir / "master.key.former").read_text() == former
    assert model_key(data_dir) == "sk-sealed"


def test_a_new_master_key_takes_no_more_memory_than_a_row(data_dir: Path) -> None:
    size, count = 2**20, 24

    async def fill(installation: Installation) -> None:
        for number in range(count):
            context = f"secrets/{USER}/custom/{number}"
            row = {"user_id": USER, "kind": "custom", "name": f"{number}"}
            sealed = installation.vault.seal(bytes(size), context)
            times = {"created_at": OLD, "updated_at": OLD}
            await insert(installation.database, "secrets", **row, **times, sealed=sealed)

    asyncio.run(in_installation(data_dir, fill))
    tracemalloc.start()
    try:
        good("keys", "rotate-master", "--data-dir", data_dir)
        assert tracemalloc.get_traced_memory()[1] < count // 2 * size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_between", [False, True])
def test_no_backup_has_a_master_key_that_does_not_open_it(
    data_dir: Path, tmp_path: Path, *, is_between: bool
) -> None:
    file = tmp_path / "b.tar.gz"
    good("keys", "rotate-master", "--data-dir", data_dir)
    # As a power cut leaves it before the swap of the files, and in the middle of it.
    (data_dir / "master.key").rename(data_dir / "master.key.next")
    if not is_between:
        (data_dir / "master.key.former").rename(data_dir / "master.key")
    for command in ("backup", file), ("prune", "--dry-run"):
        refused = call(*command, "--data-dir", data_dir)
        assert (refused.exit_code, file.exists()) == (1, False)
        assert "agentsvc keys rotate-master" in refused.stderr
    good("backup", file, "--without-key", "--data-dir", data_dir)
    good("keys", "rotate-master", "--data-dir", data_dir)
    good("backup", file, "--data-dir", data_dir)
    good("restore", file, "--data-dir", tmp_path / "there")
    assert model_key(tmp_path / "there") == "sk-sealed"


def test_every_sealed_column_is_sealed_anew(data_dir: Path) -> None:
    async def fill(installation: Installation) -> dict[str, bytes]:
        def seal(context: str) -> bytes:
            return installation.vault.seal(b"plain", context)

        database, times = installation.database, {"created_at": OLD, "updated_at": OLD}
        secret = {"user_id": USER, "kind": "custom", "name": "TOKEN"}
        context = f"secrets/{USER}/custom/TOKEN"
        await insert(database, "secrets", sealed=seal(context), **secret, **times)
        await insert_sandbox(database, "s1", seal("sandbox-key:s1"))
        client = {"sandbox_id": "s1", "user_id": USER, "client_id": "c"}
        await insert(database, "client_sandboxes", env_sealed=seal("sandbox-env:s1"), **client)
        task = {"id": "t1", "user_id": USER, "conversation_id": "c1", "status": "READY"}
        more = {"generation": "v1", "stages": b"[]", "sealed": seal("start-task:t1")}
        await insert(database, "start_tasks", **task, **more, **times)
        webhook = {"id": "w1", "user_id": USER, "url": "", "description": "", "changes": ""}
        both = dict.fromkeys(("sealed", "former_sealed"), seal("webhook subscription w1"))
        await insert(database, "webhook_subscriptions", is_enabled=1, **webhook, **both, **times)
        at = {"created_at": OLD}
        kept = {"id": "k1", "user_id": USER, "operation": "", "media": ""}
        hashes = dict.fromkeys(("key_hash", "fingerprint"), b"")
        numbers = {"status": 200, "size_bytes": 5, "is_final": 1}
        answer = {"sealed": seal("kept answer k1"), **hashes}
        await insert(database, "kept_answers", **kept, **answer, **numbers, **at)
        spare = {"id": "p1", "state": "ready", "spec": b"{}", "backend": "process", "made_of": ""}
        sealed_key = {"key_sealed": seal("spare-key:p1"), "endpoints": b"[]"}
        await insert(database, "spares", **spare, **sealed_key, **at)
        await insert_conversation(database, "c1")
        grant = {"token_hash": "t1", "conversation_id": "c1"}
        await insert(database, "model_grants", sealed=seal("model grant t1"), **grant, **at)
        return await read(installation)

    async def read(installation: Installation) -> dict[str, bytes]:
        tables = await installation.database.all(
            "SELECT m.name AS name, p.name AS col FROM sqlite_schema AS m,"
            " pragma_table_info(m.name) AS p WHERE m.type = 'table' AND p.name LIKE '%sealed'"
        )
        found = {}
        for table, column in tables:
            rows = await installation.database.all(f"SELECT {column} FROM {table}")  # noqa: S608  # names of the schema
            assert rows, table
            found[f"{table}/{column}"] = bytes(rows[0][0])
        return found

    before = asyncio.run(in_installation(data_dir, fill))
    good("keys", "rotate-master", "--data-dir", data_dir)
    after = asyncio.run(in_installation(data_dir, read))
    assert before.keys() == after.keys()
    assert len({key[1:5] for key in before.values()}) == 1
    assert len({key[1:5] for key in after.values()}) == 1
    assert {key[1:5] for key in before.values()} != {key[1:5] for key in after.values()}


@pytest.fixture
def old_things(data_dir: Path) -> Path:
    async def body(installation: Installation) -> None:
        database = installation.database
        for name in ("idle", "busy", "used", "starting", "saved"):
            await insert_sandbox(database, name)
        recent = to_stored(now())
        await insert(database, "sandbox_uses", sandbox_id="used", active_at=recent)
        owned: dict[str, object] = {"user_id": USER, "conversation_id": "c3", "created_at": OLD}
        task = {"generation": "v1", "stages": b"[]", "sealed": b"", "updated_at": OLD}
        waits = {"id": "t1", "sandbox_id": "starting", "status": "WAITING_FOR_SANDBOX"}
        await insert(database, "start_tasks", **waits, **task, **owned)
        saving = {"title": "", "working_dir": "", "directory": "", "state": "saving", "releases": 0}
        await insert(database, "archives", id="a1", sandbox_id="saved", **saving, **owned)
        for name, sandbox, status in (("c1", "none", "finished"), ("c2", "busy", "running")):
            await insert_conversation(
                database, name, sandbox_id=sandbox, execution_status=status, next_seq=3
            )
        said = {"kind": "x", "source": "user", "body": b"{}"}
        for of, seq, at in (("c1", 0, OLD), ("c1", 1, OLD), ("c1", 2, recent), ("c2", 0, OLD)):
            number: dict[str, object] = {"seq": seq, "id": f"{of}-{seq}"}
            times_of = {"timestamp": at, "received_at": at}
            await insert(database, "events", conversation_id=of, **number, **times_of, **said)

    asyncio.run(in_installation(data_dir, body))
    return data_dir


def left(data_dir: Path, sql: str) -> list[str]:
    async def body(installation: Installation) -> list[str]:
        return [str(row[0]) for row in await installation.database.all(sql)]

    return asyncio.run(in_installation(data_dir, body))


def count_events(data_dir: Path, conversation_id: str) -> int:
    async def body(installation: Installation) -> int:
        log = EventLog(installation.database, EventBus(), store_deltas=False)
        return await log.count(conversation_id, EventQuery())

    return asyncio.run(in_installation(data_dir, body))


def test_old_events_and_idle_sandboxes_go_and_nothing_else(old_things: Path) -> None:
    rules = ["--events-older-than", "90d", "--sandboxes-idle-for", "4w", "--data-dir", old_things]
    events = "SELECT id FROM events ORDER BY id"
    tried = good("prune", *rules, "--dry-run")
    assert tried.stderr == "would delete 2 events of 1 conversations and 1 sandboxes\n"
    assert [line.split()[:2] for line in tried.stdout.splitlines()[1:]] == [["idle", "ann"]]
    assert len(left(old_things, events)) == 4
    asked = call("prune", *rules)
    assert (asked.exit_code, "--yes" in asked.stderr) == (1, True)
    good("prune", *rules, "--yes")
    assert left(old_things, events) == ["c1-2", "c2-0"]
    assert count_events(old_things, "c1") == 1
    assert left(old_things, "SELECT id FROM sandboxes WHERE target = 'deleted'") == ["idle"]
    assert good("prune", *rules).stderr == "nothing is old enough\n"


def test_without_an_age_the_rules_of_the_configuration_count_and_users_own_over_them(
    old_things: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert good("prune", "--data-dir", old_things).stderr == "nothing is old enough\n"
    monkeypatch.setenv("AGENTSVC_EVENTS__DELETE_AFTER_SECONDS", "7776000")
    monkeypatch.setenv("AGENTSVC_SANDBOXES__DELETE_AFTER_SECONDS", "2419200")
    tried = good("prune", "--dry-run", "--data-dir", old_things)
    assert tried.stderr == "would delete 2 events of 1 conversations and 1 sandboxes\n"
    assert [line.split()[0] for line in tried.stdout.splitlines()[1:]] == ["idle"]

    async def keep_mine(installation: Installation) -> None:
        settings = SettingsStore(installation.database, installation.vault)
        own = IdleRules(delete_after_seconds=0)
        await settings.change(
            USER, lambda old: msgspec.structs.replace(old or Settings(), sandbox_idle=own)
        )

    asyncio.run(in_installation(old_things, keep_mine))
    good("prune", "--yes", "--data-dir", old_things)
    assert left(old_things, "SELECT id FROM events ORDER BY id") == ["c1-2", "c2-0"]
    assert left(old_things, "SELECT id FROM sandboxes WHERE target = 'deleted'") == []


def test_who_has_no_name_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 54321")

    monkeypatch.setattr("getpass.getuser", fail)
    assert call("systemd").stderr.startswith(
        "error: the current user has no name\nhint: pass one with --u"
    )
    assert "\nUser=ann\n" in good("systemd", "--user", "ann").stdout


def test_a_rule_without_an_age_is_wrong_usage(data_dir: Path) -> None:
    for wrong in (["--events-older-than", "many"], ["--sandboxes-idle-for", "0d"]):
        assert call("prune", *wrong, "--data-dir", data_dir).exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_complete_commands(shell: str) -> None:
    assert "_AGENTSVC_COMPLETE" in good("completion", shell).stdout
