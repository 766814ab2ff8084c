"""Logins of programs without a browser: who gets a key, when, and what is kept meanwhile."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from agentsvc.accounts import device_logins as devices
from agentsvc.accounts.device_logins import AttemptLimit, ClaimState, DeviceLogins
from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base import values
from agentsvc.base.errors import NotFound, TooManyRequests
from agentsvc.base.values import Secret
from agentsvc.storage.database import Database


@pytest.fixture
def logins(db: Database) -> DeviceLogins:
    return DeviceLogins(db)


@pytest.fixture
async def ada(db: Database) -> str:
    return await KeyRing(db).create_user("ada", Role.MEMBER)


async def test_an_approved_login_gives_a_key_of_that_user_once(
    db: Database, logins: DeviceLogins, ada: str
) -> None:
    login = await logins.begin()
    assert (await logins.claim(login.device_code)).state is ClaimState.PENDING
    await logins.approve(ada, login.user_code)

    granted = await logins.claim(login.device_code)
    assert granted.key is not None
    assert (await KeyRing(db).identify(granted.key.reveal())).user_id == ada
    assert (await logins.claim(login.device_code)).state is ClaimState.EXPIRED


async def test_a_login_nobody_confirmed_gives_nothing(logins: DeviceLogins) -> None:
    login = await logins.begin()
    claim = await logins.claim(login.device_code)
    assert (claim.state, claim.key) == (ClaimState.PENDING, None)


async def test_a_refused_login_gives_nothing_and_is_over(logins: DeviceLogins, ada: str) -> None:
    login = await logins.begin()
    await logins.deny(login.user_code)
    with pytest.raises(NotFound):
        await logins.approve(ada, login.user_code)
    assert (await logins.claim(login.device_code)).state is ClaimState.DENIED
    assert (await logins.claim(login.device_code)).state is ClaimState.EXPIRED


async def test_a_login_expires_for_user_and_program(db: Database, ada: str) -> None:
    logins = DeviceLogins(db, lifetime=timedelta(0))
    login = await logins.begin()
    with pytest.raises(NotFound, match="expired"):
        await logins.approve(ada, login.user_code)
    assert (await logins.claim(login.device_code)).state is ClaimState.EXPIRED


async def test_a_login_approved_in_time_still_expires(db: Database, ada: str) -> None:
    logins = DeviceLogins(db, lifetime=timedelta(seconds=0.3))
    login = await logins.begin()
    await logins.approve(ada, login.user_code)
    await asyncio.sleep(0.35)
    assert (await logins.claim(login.device_code)).state is ClaimState.EXPIRED


async def test_a_code_that_was_never_given_is_like_an_expired_one(logins: DeviceLogins) -> None:
    assert (await logins.claim(Secret("made up"))).state is ClaimState.EXPIRED


async def test_a_program_that_asks_too_often_has_to_wait_longer_each_time(
    logins: DeviceLogins,
) -> None:
    login = await logins.begin()
    claims = [await logins.claim(login.device_code) for _ in range(3)]
    assert [claim.state for claim in claims] == [
        ClaimState.PENDING,
        ClaimState.SLOW_DOWN,
        ClaimState.SLOW_DOWN,
    ]
    assert [claim.interval_seconds for claim in claims] == [5, 10, 15]


async def test_a_program_that_waits_may_ask_again(db: Database, logins: DeviceLogins) -> None:
    login = await logins.begin()
    await logins.claim(login.device_code)
    earlier = values.to_stored(values.now() - timedelta(seconds=6))
    sql = "UPDATE device_logins SET polled_at = :earlier"
    await db.write(lambda tx: tx.run(sql, {"earlier": earlier}))
    assert (await logins.claim(login.device_code)).state is ClaimState.PENDING


async def test_a_user_may_type_the_code_in_any_manner(logins: DeviceLogins, ada: str) -> None:
    login = await logins.begin()
    typed = f" {login.user_code.lower().replace('-', ' ')} "
    await logins.approve(ada, typed)
    assert (await logins.claim(login.device_code)).key is not None


async def test_a_code_approves_once(logins: DeviceLogins, ada: str) -> None:
    login = await logins.begin()
    await logins.approve(ada, login.user_code)
    with pytest.raises(NotFound):
        await logins.approve(ada, login.user_code)


async def test_only_so_many_logins_wait_until_they_expire(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "PENDING_MAX", 2)
    short = DeviceLogins(db, lifetime=timedelta(seconds=0.3))
    for _ in range(2):
        await short.begin()
    with pytest.raises(TooManyRequests):
        await short.begin()
    await asyncio.sleep(0.35)
    await short.begin()


async def test_neither_code_is_stored(logins: DeviceLogins, tmp_path: Path) -> None:
    login = await logins.begin()
    stored = b"".join(await asyncio.to_thread(contents_of, tmp_path))
    assert login.device_code.reveal().encode() not in stored
    assert login.user_code.encode() not in stored
    assert login.user_code.replace("-", "").encode() not in stored


def contents_of(directory: Path) -> list[bytes]:
    return [file.read_bytes() for file in directory.iterdir()]


def test_a_pace_is_kept_for_each_caller() -> None:
    pace = AttemptLimit(2)
    assert use_up(pace, "a") == 2
    assert use_up(pace, "b") == 2


async def test_a_pace_grows_back_and_a_refusal_does_not_count() -> None:
    pace = AttemptLimit(600)
    assert use_up(pace, "a") >= 600
    for _ in range(1000):
        await asyncio.sleep(0.02)
        if is_admitted(pace, "a"):
            return
    pytest.fail("it is never admitted again")


def test_a_pace_remembers_a_limited_number_of_callers() -> None:
    pace = AttemptLimit(1)
    pace.check("first")
    for number in range(20_000):
        pace.check(str(number))
    pace.check("first")


def is_admitted(pace: AttemptLimit, caller: str) -> bool:
    try:
        pace.check(caller)
    except TooManyRequests:
        return False
    return True


def use_up(pace: AttemptLimit, caller: str) -> int:
    """Return how often a caller is admitted at once."""
    times = 0
    while is_admitted(pace, caller):
        times += 1
    return times
