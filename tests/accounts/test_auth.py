"""Users and API keys: who is let in, who is not, and what is kept of a key."""

import logging
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agentsvc.accounts.keys import KeyRing, KeyScope, Principal, Role
from agentsvc.base import values
from agentsvc.base.errors import BadRequest, Conflict, NotAuthenticated, NotFound
from agentsvc.base.values import Secret
from agentsvc.storage.database import Database, Transaction


@pytest.fixture
def ring(db: Database) -> KeyRing:
    return KeyRing(db)


async def test_a_key_identifies_its_user(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.MEMBER)
    key, secret = await ring.create_key(user_id, "laptop")

    assert await ring.identify(secret.reveal()) == Principal(
        user_id=user_id, user_name="ada", role=Role.MEMBER, key_id=key.id, scope=KeyScope.ADMIN
    )


async def test_two_keys_of_one_user_are_told_apart(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    first, first_secret = await ring.create_key(user_id, "laptop")
    second, second_secret = await ring.create_key(user_id, "phone")

    assert (await ring.identify(first_secret.reveal())).key_id == first.id
    assert (await ring.identify(second_secret.reveal())).key_id == second.id
    assert (await ring.identify(second_secret.reveal())).role is Role.ADMIN


@pytest.mark.parametrize(
    "key",
    ["", "asvc_", "asvc_" + "x" * 43, "ключ", "\udcff\udcfe", "x" * 100_000, "a\x00b", "' OR 1"],
)
async def test_what_is_no_key_is_not_let_in(ring: KeyRing, key: str) -> None:
    await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    with pytest.raises(NotAuthenticated, match=r"^Unauthorized$"):
        await ring.identify(key)


async def test_the_stored_hash_is_no_key(ring: KeyRing) -> None:
    _, secret = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    with pytest.raises(NotAuthenticated):
        await ring.identify(values.sha256(secret.reveal()))


async def test_a_revoked_key_is_not_let_in_and_others_of_the_user_are(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    lost, lost_secret = await ring.create_key(user_id, "laptop")
    _, kept_secret = await ring.create_key(user_id, "phone")

    await ring.revoke_key(lost.id)

    with pytest.raises(NotAuthenticated, match=r"^Unauthorized$"):
        await ring.identify(lost_secret.reveal())
    assert (await ring.identify(kept_secret.reveal())).user_id == user_id


async def test_what_is_known_of_a_key_ends_with_the_next_change(
    ring: KeyRing, db: Database
) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    key, secret = await ring.create_key(user_id, "laptop")

    assert (await ring.identify(secret.reveal())).role is Role.ADMIN
    await db.write(lambda tx: tx.run("UPDATE users SET role = 'viewer'"))
    assert (await ring.identify(secret.reveal())).role is Role.VIEWER
    await ring.revoke_key(key.id)
    with pytest.raises(NotAuthenticated):
        await ring.identify(secret.reveal())


async def test_a_key_that_another_process_revokes_is_useless_at_once(
    ring: KeyRing, db: Database
) -> None:
    key, secret = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    for _ in range(2):
        # The first use is noted, which is a change.
        await ring.identify(secret.reveal())
    other = await Database.open(db.path)
    try:
        await KeyRing(other).revoke_key(key.id)
        with pytest.raises(NotAuthenticated):
            await ring.identify(secret.reveal())
    finally:
        await other.close()


async def test_revoking_again_keeps_the_first_moment(ring: KeyRing) -> None:
    key, _ = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    await ring.revoke_key(key.id)
    [before] = await ring.list_keys()
    await ring.revoke_key(key.id)

    assert await ring.list_keys() == [before]
    assert before.revoked_at is not None


async def test_revoking_an_unknown_key_is_not_found(ring: KeyRing) -> None:
    with pytest.raises(NotFound):
        await ring.revoke_key(7)


async def test_keys_are_listed_as_they_were_made_without_what_is_secret(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    first, first_secret = await ring.create_key(user_id, "laptop")
    second, _ = await ring.create_key(user_id, "phone")

    assert await ring.list_keys() == [first, second]
    assert (first.user_id, first.user_name, first.name) == (user_id, "ada", "laptop")
    assert (first.last_used_at, first.revoked_at) == (None, None)
    assert values.now() - first.created_at < timedelta(minutes=1)
    assert first_secret.reveal().startswith(first.prefix)
    assert first.prefix.startswith("asvc_")
    assert len(first.prefix) == 9


async def test_no_key_is_in_the_database_file(db: Database, ring: KeyRing, tmp_path: Path) -> None:
    _, secret = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    await ring.identify(secret.reveal())
    await db.close()
    assert secret.reveal().encode() not in content_of(tmp_path / "agentsvc.db")


def content_of(path: Path) -> bytes:
    return path.read_bytes()


async def test_a_key_from_outside_is_used_as_it_is(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    brought = Secret("0123456789abcdef0123456789abcdef")
    key, secret = await ring.create_key(user_id, "bootstrap", key=brought)

    assert secret == brought
    assert (await ring.identify(brought.reveal())).key_id == key.id


@pytest.mark.parametrize("text", ["hunter2", "x" * 31, "é" * 32, "x" * 31 + " y", "x" * 32 + "\n"])
async def test_a_key_from_outside_that_is_unfit_is_refused(ring: KeyRing, text: str) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    with pytest.raises(BadRequest) as caught:
        await ring.create_key(user_id, "bootstrap", key=Secret(text))
    assert text not in caught.value.message
    assert not await ring.has_keys()


async def test_a_key_that_exists_is_refused_whoever_brings_it(ring: KeyRing) -> None:
    brought = Secret("0123456789abcdef0123456789abcdef")
    ada = await ring.create_user("ada", Role.ADMIN)
    await ring.create_key(ada, "one", key=brought)
    with pytest.raises(Conflict):
        await ring.create_key(await ring.create_user("bob", Role.MEMBER), "two", key=brought)
    assert (await ring.identify(brought.reveal())).user_id == ada


async def test_a_key_needs_a_user(ring: KeyRing) -> None:
    with pytest.raises(NotFound, match="no such user"):
        await ring.create_key("nobody", "laptop")


async def test_a_user_is_found_by_name(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    assert await ring.find_user("ada") == user_id
    assert await ring.find_user("Ada") is None


async def test_a_name_is_taken_once(ring: KeyRing) -> None:
    await ring.create_user("ada", Role.ADMIN)
    with pytest.raises(Conflict, match="ada"):
        await ring.create_user("ada", Role.MEMBER)


async def test_users_are_listed_by_name(ring: KeyRing) -> None:
    for name in ("bob", "ada"):
        await ring.create_user(name, Role.MEMBER)
    assert await ring.list_users() == ["ada", "bob"]


@pytest.mark.parametrize(
    ("begins", "ends", "is_valid"),
    [(None, None, True), (-5, 5, True), (5, None, False), (None, -5, False), (-9, -5, False)],
)
async def test_a_key_opens_only_in_its_time(
    ring: KeyRing, begins: int | None, ends: int | None, *, is_valid: bool
) -> None:
    times = [None if m is None else values.now() + timedelta(minutes=m) for m in (begins, ends)]
    user_id = await ring.create_user("ada", Role.MEMBER)
    key, secret = await ring.create_key(user_id, "k", not_before=times[0], expires_at=times[1])

    assert [key.not_before, key.expires_at] == times
    if is_valid:
        assert (await ring.identify(secret.reveal())).key_id == key.id
    else:
        with pytest.raises(NotAuthenticated):
            await ring.identify(secret.reveal())


async def test_a_user_has_keys_of_their_own(ring: KeyRing) -> None:
    ada, bob = [await ring.create_user(name, Role.MEMBER) for name in ("ada", "bob")]
    mine, _ = await ring.create_key(ada, "mine")
    theirs, _ = await ring.create_key(bob, "theirs")

    assert [key.id for key in await ring.list_keys_of(ada)] == [mine.id]
    with pytest.raises(NotFound):
        await ring.revoke_key(theirs.id, user_id=ada)
    await ring.revoke_key(mine.id, user_id=ada)
    assert await ring.list_keys_of(ada) == []
    assert [key.id for key in await ring.list_keys_of(bob)] == [theirs.id]


async def test_a_key_can_be_looked_up(ring: KeyRing) -> None:
    key, _ = await ring.create_key(await ring.create_user("ada", Role.MEMBER), "mine")
    assert await ring.get_key(key.id) == key
    with pytest.raises(NotFound):
        await ring.get_key(key.id + 1)


@pytest.mark.parametrize("name", ["", "x" * 101, "a\nb", "\udcff"])
async def test_names_are_short_and_printable(ring: KeyRing, name: str) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    with pytest.raises(BadRequest):
        await ring.create_user(name, Role.MEMBER)
    with pytest.raises(BadRequest):
        await ring.create_key(user_id, name)


async def test_a_key_is_good_until_it_is_revoked(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    key, secret = await ring.create_key(user_id, "laptop")
    other, _ = await ring.create_key(user_id, "phone", scope=KeyScope.READ)
    ids = [key.id, other.id, other.id + 1]

    assert [one.scope for one in (await ring.find_good(ids)).values()] == ["admin", "read"]
    assert (await ring.find_good(ids))[key.id] == await ring.identify(secret.reveal())
    await ring.revoke_key(key.id)
    assert list(await ring.find_good(ids)) == [other.id]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("scope", [KeyScope.READ, KeyScope.RUN, KeyScope.ADMIN])
async def test_what_a_caller_may_do_is_what_role_and_key_both_allow(
    ring: KeyRing, role: Role, scope: KeyScope
) -> None:
    _, secret = await ring.create_key(await ring.create_user("ada", role), "k", scope=scope)
    caller = await ring.identify(secret.reveal())

    assert (caller.role, caller.scope) == (role, scope)
    assert caller.may_run == (role != "viewer" and scope != "read")
    assert caller.may_manage == (role != "viewer" and scope == "admin")
    assert caller.is_admin == (role == "admin")


async def test_has_keys_tells_whether_one_was_ever_issued(ring: KeyRing) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    assert not await ring.has_keys()
    key, _ = await ring.create_key(user_id, "laptop")
    await ring.revoke_key(key.id)
    assert await ring.has_keys()


async def used_at(ring: KeyRing) -> datetime | None:
    [key] = await ring.list_keys()
    return key.last_used_at


async def test_the_use_of_a_key_is_noted_at_most_once_a_minute(db: Database, ring: KeyRing) -> None:
    _, secret = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    assert await used_at(ring) is None

    await ring.identify(secret.reveal())
    first = await used_at(ring)
    assert first is not None
    await ring.identify(secret.reveal())
    assert await used_at(ring) == first

    long_ago = values.to_stored(first - timedelta(minutes=2))
    sql = "UPDATE api_keys SET last_used_at = :long_ago"
    await db.write(lambda tx: tx.run(sql, {"long_ago": long_ago}))
    await ring.identify(secret.reveal())
    last = await used_at(ring)
    assert last is not None
    assert last >= first


async def test_a_full_disk_does_not_lock_users_out(
    db: Database, ring: KeyRing, caplog: pytest.LogCaptureFixture
) -> None:
    user_id = await ring.create_user("ada", Role.ADMIN)
    _, secret = await ring.create_key(user_id, "laptop")

    async def refuse_updates(tx: Transaction) -> None:
        await tx.run(
            "CREATE TRIGGER full BEFORE UPDATE ON api_keys BEGIN SELECT RAISE(ROLLBACK, 'full'); END"
        )

    await db.write(refuse_updates)
    with caplog.at_level(logging.WARNING):
        principal = await ring.identify(secret.reveal())

    assert principal.user_id == user_id
    assert "last use of a key not stored" in caplog.text


async def test_times_survive_storage(ring: KeyRing, tmp_path: Path) -> None:
    key, _ = await ring.create_key(await ring.create_user("ada", Role.ADMIN), "laptop")
    connection = sqlite3.connect(tmp_path / "agentsvc.db")
    [(stored,)] = connection.execute("SELECT created_at FROM api_keys").fetchall()
    connection.close()
    assert stored == values.to_stored(key.created_at)
