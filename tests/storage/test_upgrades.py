"""Databases of earlier versions, as they were written then, become databases of this one."""

import re
import shutil
import sqlite3
from functools import partial
from pathlib import Path

import pytest

import agentsvc
from agentsvc.accounts.keys import KeyRing
from agentsvc.base.bus import EventBus
from agentsvc.base.errors import NotAuthenticated
from agentsvc.base.values import Secret
from agentsvc.conversations.archives.table import find_archive
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.message_queue_table import all_waiting, find_first, lane_of
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.table import ConversationTable
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.settings.secret_store import SecretStore
from agentsvc.settings.store import SettingsStore
from agentsvc.storage.database import Database
from agentsvc.storage.database_file import MIGRATIONS, check_file
from agentsvc.storage.vault import Vault

DUMPS = Path(__file__).parents[1] / "data" / "db"
OLD = sorted(DUMPS.glob("[0-9]*.sql"))
CHANGES = Path(agentsvc.__file__).parent / "CHANGES.md"
KEY = "asvc_" + "k" * 43
REVOKED = "asvc_" + "g" * 43


@pytest.fixture(params=OLD, ids=[file.stem for file in OLD])
def old(request: pytest.FixtureRequest, db_path: Path) -> Path:
    dump: Path = request.param
    connection = sqlite3.connect(db_path)
    connection.executescript(dump.read_text("utf-8"))
    connection.close()
    return db_path


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def counts(db_path: Path) -> dict[str, int]:
    connection = sqlite3.connect(db_path)
    try:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0]  # noqa: S608  # names of the schema
            for (name,) in tables.fetchall()
        }
    finally:
        connection.close()


def version_of(db_path: Path) -> int:
    connection = sqlite3.connect(db_path)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def schema(db_path: Path) -> dict[str, str]:
    """Return the statements of the schema, alike however they are laid out."""
    connection = sqlite3.connect(db_path)
    try:
        rows = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {name: re.sub(r'[\s"]+', " ", sql) for name, sql in rows.fetchall()}
    finally:
        connection.close()


def test_there_is_a_dump_of_the_first_version_and_one_with_rows_in_every_table(
    db_path: Path,
) -> None:
    assert OLD[0].stem == "0001"
    connection = sqlite3.connect(db_path)
    connection.executescript(OLD[-1].read_text("utf-8"))
    connection.close()
    assert [name for name, count in counts(db_path).items() if count == 0] == []


def test_nobody_has_a_database_of_what_lies_between() -> None:
    """From the first release on, a dump of each version that was released is kept."""
    assert re.findall(r"^## (.*)$", CHANGES.read_text("utf-8"), re.MULTILINE) == ["Unreleased"]


async def test_an_old_database_gets_the_schema_of_a_new_one_and_keeps_its_rows(
    old: Path, tmp_path: Path
) -> None:
    before = counts(old)
    await (await Database.open(old)).close()
    await (await Database.open(tmp_path / "new.db")).close()

    after = counts(old)
    assert schema(old) == schema(tmp_path / "new.db")
    assert {name: after[name] for name in before} == before
    assert check_file(old) == []
    assert all(before[name] for name in ("users", "api_keys", "settings", "events"))


@pytest.mark.parametrize("version", range(1, len(list(MIGRATIONS.glob("[0-9]*.sql")))))
async def test_every_version_between_the_first_and_this_one_can_be_upgraded(
    version: int, db_path: Path, tmp_path: Path
) -> None:
    """Nobody should have to go by way of a release that they left out."""
    connection = sqlite3.connect(db_path)
    connection.executescript(OLD[0].read_text("utf-8"))
    connection.close()
    before = counts(db_path)
    then = tmp_path / "migrations of then"
    then.mkdir()
    for file in MIGRATIONS.glob("[0-9]*.sql"):
        if int(file.name[:4]) <= version:
            shutil.copy(file, then)
    await (await Database.open(db_path, migrations=then)).close()
    assert version_of(db_path) == version

    await (await Database.open(db_path)).close()
    await (await Database.open(tmp_path / "new.db")).close()

    assert schema(db_path) == schema(tmp_path / "new.db")
    assert {name: count for name, count in counts(db_path).items() if name in before} == before
    assert check_file(db_path) == []
    copies = {version_of(copy) for copy in db_path.parent.glob(f"{db_path.name}.v*")}
    assert copies == {1, version}


async def test_an_upgraded_database_is_not_upgraded_again(old: Path) -> None:
    await (await Database.open(old)).close()
    before = content_of(old)
    await (await Database.open(old)).close()
    assert content_of(old) == before


async def test_keys_settings_and_secrets_of_an_old_database_still_work(old: Path) -> None:
    database = await Database.open(old)
    try:
        keys, vault = KeyRing(database), Vault.open(DUMPS / "master.key")
        ann = await keys.identify(KEY)
        with pytest.raises(NotAuthenticated):
            await keys.identify(REVOKED)
        settings = await SettingsStore(database, vault).get(ann.user_id)
        secrets = await SecretStore(database, vault).custom_secrets(ann.user_id)
        tokens = await SecretStore(database, vault).provider_tokens(ann.user_id)
    finally:
        await database.close()
    assert (settings.language, settings.max_iterations) == ("en", 77)
    assert settings.llm_api_key == Secret("model-key-1")
    assert settings.mcp_config is not None
    assert settings.mcp_config.sse_servers[0].api_key == Secret("tool-key")
    assert secrets["DEPLOY"].value == Secret("s3")
    assert tokens["github"].token == Secret("ghp_1")


async def test_what_each_part_has_stored_is_still_read(old: Path) -> None:
    """A server goes on with all of it: conversations, starts, sandboxes, what waits and what is kept."""
    database = await Database.open(old)
    try:
        vault, news = Vault.open(DUMPS / "master.key"), EventBus()
        for table, find in (
            ("conversations", ConversationTable(database, news).find),
            ("start_tasks", StartTaskTable(database, vault, news).find),
            ("sandboxes", SandboxTable(database, vault).find),
            ("archives", partial(find_archive, database)),
        ):
            for row in await database.all(f"SELECT id FROM {table}"):  # noqa: S608  # names of the schema
                found = await find(row["id"])
                assert found is not None
                assert found.id == row["id"]
        for _, conversation_id, kind in await all_waiting(database):
            assert await find_first(database, conversation_id, lane_of(kind))
        log = EventLog(database, news, store_deltas=False)
        for row in await database.all(
            "SELECT conversation_id, COUNT(*) AS n FROM events GROUP BY 1"
        ):
            events = await log.read_range(row["conversation_id"], from_seq=0, limit=1000)
            assert len(events) == row["n"]
    finally:
        await database.close()
