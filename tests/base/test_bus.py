"""News inside the server: each listener hears what it wants, in order, within bounds."""

import asyncio
from typing import Any

import pytest

from agentsvc.base.bus import MAX_WAITING, EventBus, Notice, Overflow, Subject


def news(number: int = 0, **fields: Any) -> Notice:
    defaults = {
        "subject": Subject.EVENTS,
        "user_id": "u",
        "id": "c",
        "conversation_id": "c",
        "seq": number,
    }
    return Notice(**{**defaults, **fields})


def delta(number: int, size: int = 1) -> Notice:
    return news(number, subject=Subject.DELTA, delta=b"x" * size)


def anything(_news: Notice) -> bool:
    return True


async def test_what_is_announced_is_heard_in_order() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything) as listener:
        told = [news(1, id=name) for name in "abc"]
        for one in told:
            event_bus.announce(one)
        assert await listener.take() == told


async def test_a_listener_is_woken() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything) as listener:
        heard = asyncio.ensure_future(listener.take())  # noqa: TID251  # to announce meanwhile
        await asyncio.sleep(0)
        assert not heard.done()
        event_bus.announce(news(7))
        assert await asyncio.wait_for(heard, 10) == [news(7)]


async def test_nothing_of_another_user_and_nothing_unwanted_is_heard() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", lambda told: told.id == "wanted") as listener:
        event_bus.announce(news(1, id="wanted", user_id="v"))
        event_bus.announce(news(2, id="other"))
        event_bus.announce(news(3, id="wanted"))
        assert await listener.take() == [news(3, id="wanted")]


async def test_nothing_announced_before_or_after_is_heard() -> None:
    event_bus = EventBus()
    event_bus.announce(news(1))
    with event_bus.subscribe("u", anything) as listener:
        event_bus.announce(news(2))
        assert await listener.take() == [news(2)]
    event_bus.announce(news(3))
    listener.close()
    assert event_bus.count() == 0
    assert await listener.take() == []


async def test_closing_ends_a_wait() -> None:
    listener = EventBus().subscribe("u", anything)
    heard = asyncio.ensure_future(listener.take())  # noqa: TID251  # to close meanwhile
    await asyncio.sleep(0)
    listener.close()
    assert await asyncio.wait_for(heard, 10) == []
    assert await asyncio.wait_for(listener.take(), 10) == []


async def test_each_listener_hears_for_itself() -> None:
    event_bus = EventBus()
    with (
        event_bus.subscribe("u", anything) as one,
        event_bus.subscribe("u", anything) as other,
    ):
        event_bus.announce(news(1))
        assert await one.take() == [news(1)]
        event_bus.announce(news(2))
        assert await one.take() == [news(2)]
        assert await other.take() == [news(2)]
        assert event_bus.count() == 2


async def test_of_several_announcements_of_one_thing_the_last_waits() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything) as listener:
        for number in range(MAX_WAITING + 1):
            event_bus.announce(news(number))
            event_bus.announce(news(subject=Subject.CONVERSATION, is_deleted=number == MAX_WAITING))
        assert await listener.take() == [
            news(MAX_WAITING),
            news(subject=Subject.CONVERSATION, is_deleted=True),
        ]


async def test_every_delta_waits() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything) as listener:
        told = [delta(1), delta(1), news(2), delta(2)]
        for one in told:
            event_bus.announce(one)
        assert await listener.take() == told


@pytest.mark.parametrize(
    "told",
    [
        [news(id=str(number)) for number in range(MAX_WAITING + 1)],
        [delta(1, size=6), delta(1, size=6)],
    ],
)
async def test_too_much_that_waits_is_an_overrun_told_once(told: list[Notice]) -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything, max_waiting_bytes=10) as listener:
        for one in told:
            event_bus.announce(one)
        with pytest.raises(Overflow):
            await listener.take()
        event_bus.announce(news(9))
        assert await listener.take() == [news(9)]


async def test_the_limits_are_for_what_waits_and_not_for_all_that_was_heard() -> None:
    event_bus = EventBus()
    with event_bus.subscribe("u", anything, max_waiting_bytes=10) as listener:
        for number in range(MAX_WAITING + 1):
            event_bus.announce(delta(number, size=8))
            assert await listener.take() == [delta(number, size=8)]


def test_who_watches_is_told_at_once_until_the_end() -> None:
    event_bus = EventBus()
    told: list[Notice] = []
    others: list[Notice] = []
    end = event_bus.watch("u", told.append)
    end_other = event_bus.watch("u", others.append)
    event_bus.announce(news(1))
    event_bus.announce(news(2, user_id="v"))
    assert told == [news(1)]

    end()
    end()
    event_bus.announce(news(3))
    assert told == [news(1)]
    assert others == [news(1), news(3)]
    end_other()
    assert event_bus.count() == 0


async def test_who_listens_for_one_conversation_hears_of_no_other() -> None:
    event_bus = EventBus()
    with (
        event_bus.subscribe("u", anything, conversation_id="c") as one,
        event_bus.subscribe("u", anything) as everything,
    ):
        for name in ("c", "d"):
            event_bus.announce(
                Notice(subject=Subject.EVENTS, user_id="u", id=name, conversation_id=name)
            )
        event_bus.announce(Notice(subject=Subject.SANDBOX, user_id="u", id="s"))
        assert [news.id for news in await one.take()] == ["c"]
        assert [news.id for news in await everything.take()] == ["c", "d", "s"]
    assert event_bus.count() == 0
