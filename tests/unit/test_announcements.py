"""News inside the server: each listener hears what it wants, in order, within bounds."""

import asyncio
from typing import Any

import pytest

from agentsvc.base.bus import Announcement, Announcements, Overrun, Subject


def news(number: int = 0, **fields: Any) -> Announcement:
    defaults = {
        "subject": Subject.EVENTS,
        "user_id": "u",
        "id": "c",
        "conversation_id": "c",
        "seq": number,
    }
    return Announcement(**{**defaults, **fields})


def delta(number: int, size: int = 1) -> Announcement:
    return news(number, subject=Subject.DELTA, delta=b"x" * size)


def anything(_news: Announcement) -> bool:
    return True


async def test_what_is_announced_is_heard_in_order() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything) as listener:
        told = [news(1, id=name) for name in "abc"]
        for one in told:
            announcements.announce(one)
        assert await listener.take() == told


async def test_a_listener_is_woken() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything) as listener:
        heard = asyncio.ensure_future(listener.take())  # noqa: TID251  # to announce meanwhile
        await asyncio.sleep(0)
        assert not heard.done()
        announcements.announce(news(7))
        assert await asyncio.wait_for(heard, 10) == [news(7)]


async def test_nothing_of_another_user_and_nothing_unwanted_is_heard() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", lambda told: told.id == "wanted") as listener:
        announcements.announce(news(1, id="wanted", user_id="v"))
        announcements.announce(news(2, id="other"))
        announcements.announce(news(3, id="wanted"))
        assert await listener.take() == [news(3, id="wanted")]


async def test_nothing_announced_before_or_after_is_heard() -> None:
    announcements = Announcements()
    announcements.announce(news(1))
    with announcements.subscribe("u", anything) as listener:
        announcements.announce(news(2))
        assert await listener.take() == [news(2)]
    announcements.announce(news(3))
    listener.close()
    assert announcements.count() == 0
    assert await listener.take() == []


async def test_closing_ends_a_wait() -> None:
    listener = Announcements().subscribe("u", anything)
    heard = asyncio.ensure_future(listener.take())  # noqa: TID251  # to close meanwhile
    await asyncio.sleep(0)
    listener.close()
    assert await asyncio.wait_for(heard, 10) == []
    assert await asyncio.wait_for(listener.take(), 10) == []


async def test_each_listener_hears_for_itself() -> None:
    announcements = Announcements()
    with (
        announcements.subscribe("u", anything) as one,
        announcements.subscribe("u", anything) as other,
    ):
        announcements.announce(news(1))
        assert await one.take() == [news(1)]
        announcements.announce(news(2))
        assert await one.take() == [news(2)]
        assert await other.take() == [news(2)]
        assert announcements.count() == 2


async def test_of_several_announcements_of_one_thing_the_last_waits() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything, most_waiting=3) as listener:
        for number in range(100):
            announcements.announce(news(number))
            announcements.announce(news(subject=Subject.CONVERSATION, is_deleted=number == 99))
        assert await listener.take() == [
            news(99),
            news(subject=Subject.CONVERSATION, is_deleted=True),
        ]


async def test_every_delta_waits() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything) as listener:
        told = [delta(1), delta(1), news(2), delta(2)]
        for one in told:
            announcements.announce(one)
        assert await listener.take() == told


@pytest.mark.parametrize(
    "told",
    [[news(id=str(number)) for number in range(4)], [delta(1, size=6), delta(1, size=6)]],
)
async def test_too_much_that_waits_is_an_overrun_told_once(told: list[Announcement]) -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything, most_waiting=3, most_waiting_bytes=10) as listener:
        for one in told:
            announcements.announce(one)
        with pytest.raises(Overrun):
            await listener.take()
        announcements.announce(news(9))
        assert await listener.take() == [news(9)]


async def test_the_limits_are_for_what_waits_and_not_for_all_that_was_heard() -> None:
    announcements = Announcements()
    with announcements.subscribe("u", anything, most_waiting=2, most_waiting_bytes=10) as listener:
        for number in range(20):
            announcements.announce(delta(number, size=8))
            assert await listener.take() == [delta(number, size=8)]


def test_who_watches_is_told_at_once_until_the_end() -> None:
    announcements = Announcements()
    told: list[Announcement] = []
    others: list[Announcement] = []
    end = announcements.watch("u", told.append)
    end_other = announcements.watch("u", others.append)
    announcements.announce(news(1))
    announcements.announce(news(2, user_id="v"))
    assert told == [news(1)]

    end()
    end()
    announcements.announce(news(3))
    assert told == [news(1)]
    assert others == [news(1), news(3)]
    end_other()
    assert announcements.count() == 0


async def test_who_listens_for_one_conversation_hears_of_no_other() -> None:
    announcements = Announcements()
    with (
        announcements.subscribe("u", anything, conversation_id="c") as one,
        announcements.subscribe("u", anything) as everything,
    ):
        for name in ("c", "d"):
            announcements.announce(
                Announcement(subject=Subject.EVENTS, user_id="u", id=name, conversation_id=name)
            )
        announcements.announce(Announcement(subject=Subject.SANDBOX, user_id="u", id="s"))
        assert [news.id for news in await one.take()] == ["c"]
        assert [news.id for news in await everything.take()] == ["c", "d", "s"]
    assert announcements.count() == 0
