"""What belongs together in a data directory: a database, its master key, the id of both."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from agentsvc.base.errors import StartFailed
from agentsvc.base.values import Secret
from agentsvc.config.data_directory import DataDirectory
from agentsvc.settings.secret_store import SecretStore
from agentsvc.storage.database import Transaction
from agentsvc.storage.installation import Installation, change_master_key
from agentsvc.storage.vault import Vault
from tests.new_data import make_first_key

OLD = Path(__file__).parents[1] / "data" / "db"


@pytest.fixture
def places(tmp_path: Path) -> DataDirectory:
    return make_places(tmp_path / "data")


def make_places(path: Path) -> DataDirectory:
    places = DataDirectory(path=path)
    places.prepare()
    return places


async def with_a_secret(places: DataDirectory) -> None:
    await make_first_key(places)
    installation = await Installation.open(places)
    try:
        row = await installation.database.one("SELECT id FROM users")
        assert row is not None
        store = SecretStore(installation.database, installation.vault)
        await store.set_custom_secret(row["id"], "A", value=Secret("s3"))
    finally:
        await installation.close()


async def open_and_close(places: DataDirectory) -> None:
    await (await Installation.open(places)).close()


async def test_a_restored_database_without_its_master_key_does_not_start(
    places: DataDirectory, tmp_path: Path
) -> None:
    await with_a_secret(places)
    restored = make_places(tmp_path / "restored")
    shutil.copy(places.database, restored.database)
    with pytest.raises(StartFailed, match="is missing") as caught:
        await make_first_key(restored)
    assert str(restored.master_key) in caught.value.message
    assert "put the key back" in caught.value.hint
    assert not restored.master_key.exists()
    shutil.copy(places.master_key, restored.master_key)
    await open_and_close(restored)


async def test_another_master_key_stops_the_start_before_a_key_is_made(
    places: DataDirectory, tmp_path: Path
) -> None:
    await with_a_secret(places)
    other = make_places(tmp_path / "other")
    await open_and_close(other)
    shutil.copy(other.master_key, places.master_key)
    with sqlite3.connect(places.database) as connection:
        connection.execute("DELETE FROM api_keys")
    connection.close()
    with pytest.raises(StartFailed, match="is not the one that sealed") as caught:
        await make_first_key(places)
    assert str(places.master_key) in caught.value.message
    assert caught.value.hint
    connection = sqlite3.connect(places.database)
    assert connection.execute("SELECT COUNT(*) FROM api_keys").fetchone() == (0,)
    connection.close()


async def test_what_plugins_have_sealed_takes_no_other_master_key(places: DataDirectory) -> None:
    """As the key of a GitHub App, which an administrator without settings has stored."""
    async with await Installation.open(places) as installation:
        installation.read_id()
        row = {"sealed": installation.vault.seal(b"s3", "notes"), "sealed_as": "notes"}

        async def body(tx: Transaction) -> None:
            await tx.run('CREATE TABLE "plugin_my notes" (sealed BLOB, sealed_as TEXT) STRICT')
            await tx.insert('"plugin_my notes"', row)

        await installation.database.write(body)
    right = places.master_key.read_bytes()
    places.master_key.unlink()
    Vault.open(places.master_key)
    with pytest.raises(StartFailed, match="is not the one that sealed"):
        await Installation.open(places)
    places.master_key.write_bytes(right)
    await change_master_key(places)
    async with await Installation.open(places) as installation:
        [sealed] = await installation.database.column('SELECT sealed FROM "plugin_my notes"')
        assert installation.vault.unseal(sealed, "notes") == b"s3"


@pytest.mark.parametrize("is_empty", [False, True])
async def test_a_lost_database_is_not_replaced_where_sandboxes_would_be_lost_with_it(
    places: DataDirectory, *, is_empty: bool
) -> None:
    async with await Installation.open(places) as installation:
        installation.read_id()
    places.database.unlink()
    if is_empty:
        places.database.touch()
    with pytest.raises(StartFailed, match="is missing") as caught:
        await open_and_close(places)
    assert "move `instance-id` away" in caught.value.hint
    assert places.database.exists() is is_empty
    places.instance_id.unlink()
    await open_and_close(places)


async def test_a_database_that_holds_nothing_sealed_takes_a_new_master_key(
    places: DataDirectory,
) -> None:
    await make_first_key(places)
    places.master_key.unlink()
    await with_a_secret(places)
    await open_and_close(places)


@pytest.mark.parametrize("dump", sorted(file.stem for file in OLD.glob("[0-9]*.sql")))
async def test_a_database_of_an_earlier_version_knows_its_master_key(
    places: DataDirectory, dump: str
) -> None:
    connection = sqlite3.connect(places.database)
    connection.executescript((OLD / f"{dump}.sql").read_text("utf-8"))
    connection.close()
    with pytest.raises(StartFailed, match="is missing"):
        await Installation.open(places)
    shutil.copy(OLD / "master.key", places.master_key)
    await open_and_close(places)


async def read_id(places: DataDirectory) -> str:
    installation = await Installation.open(places)
    try:
        return installation.read_id()
    finally:
        await installation.close()


async def test_an_empty_file_of_the_id_is_as_if_absent(places: DataDirectory) -> None:
    first = await read_id(places)
    assert await read_id(places) == first
    places.instance_id.write_text(" \n")
    second = await read_id(places)
    assert len(second) == 32
    assert second != first


@pytest.mark.parametrize("content", [b"x", b"a" * 31, b"g" * 32, b"\xff\xfe" * 16])
async def test_a_file_that_holds_no_id_stops_the_start(
    places: DataDirectory, content: bytes
) -> None:
    await open_and_close(places)
    places.instance_id.write_bytes(content)
    with pytest.raises(StartFailed, match="32 hex digits") as caught:
        await read_id(places)
    assert str(places.instance_id) in caught.value.message
    assert caught.value.hint
    assert places.instance_id.read_bytes() == content


async def test_a_file_of_the_id_that_cannot_be_read_stops_the_start(places: DataDirectory) -> None:
    await open_and_close(places)
    places.instance_id.mkdir()
    with pytest.raises(StartFailed, match="Is a directory") as caught:
        await read_id(places)
    # Who owns it does not matter.
    assert caught.value.hint == ""
