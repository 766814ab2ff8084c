"""Plugins are told events in order, and a bad plugin keeps none from another."""

import asyncio
import sys
from collections.abc import Awaitable

import pytest

from agentsvc.base.values import now
from agentsvc.plugin.hookspecs import Event, hookimpl
from agentsvc.sandboxes.plugin_loader import Notifier, PluginHost


def event(kind: str = "sandbox.changed") -> Event:
    return Event(id="1", kind=kind, at=now(), subject_id="x")


class Hears:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    @hookimpl
    def agentsvc_on_event(self, event: Event) -> None:
        self.kinds.append(event.kind)


class HearsLater:
    """Needs a moment."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    @hookimpl
    def agentsvc_on_event(self, event: Event) -> Awaitable[None]:
        async def hear() -> None:
            await asyncio.sleep(0)
            self.kinds.append(event.kind)

        return hear()


class FailsAtOnce:
    @hookimpl
    def agentsvc_on_event(self, event: Event) -> None:
        raise RuntimeError(f"no interest in {event.kind}")


class FailsLater:
    @hookimpl
    def agentsvc_on_event(self, event: Event) -> Awaitable[None]:
        async def fail() -> None:
            raise RuntimeError(f"no interest in {event.kind}")

        return fail()


class Hangs:
    @hookimpl
    def agentsvc_on_event(self) -> Awaitable[None]:
        return asyncio.sleep(60)


class Ends:
    """Tries to end the server."""

    @hookimpl
    def agentsvc_on_event(self) -> None:
        sys.exit(3)


class IsCancelled:
    """Waits for something that somebody cancels."""

    @hookimpl
    def agentsvc_on_event(self) -> Awaitable[None]:
        async def wait() -> None:
            raise asyncio.CancelledError

        return wait()


def host_of(**plugins: object) -> PluginHost:
    host = PluginHost()
    for name, plugin in plugins.items():
        host.add(name, plugin, version="", origin="this test")
    return host


async def test_one_bad_plugin_cannot_silence_another(caplog: pytest.LogCaptureFixture) -> None:
    first, last = Hears(), HearsLater()
    bad = {
        "at_once": FailsAtOnce(),
        "later": FailsLater(),
        "hangs": Hangs(),
        "ends": Ends(),
        "cancelled": IsCancelled(),
    }
    host = host_of(first=first, **bad, last=last)
    await Notifier(host, time_limit=1).tell(event())
    assert first.kinds == last.kinds == ["sandbox.changed"]
    failed = [record.__dict__["plugin"] for record in caplog.records]
    assert sorted(failed) == sorted(bad)


async def test_a_plugin_that_hangs_or_is_cancelled_keeps_no_event_from_another() -> None:
    hears = Hears()
    notifier = Notifier(host_of(hangs=Hangs(), cancelled=IsCancelled(), hears=hears), time_limit=60)
    for kind in ("a", "b", "c"):
        notifier.publish(event(kind))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await notifier.run()
    assert hears.kinds == ["a", "b", "c"]


async def test_published_events_are_told_in_order() -> None:
    hears = Hears()
    notifier = Notifier(host_of(hears=hears))
    for kind in ("a", "b", "c"):
        notifier.publish(event(kind))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await notifier.run()
    assert hears.kinds == ["a", "b", "c"]


async def test_events_beyond_what_plugins_can_take_are_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notifier = Notifier(host_of(hears=Hears()))
    for _ in range(1001):
        notifier.publish(event())
    assert [record.message for record in caplog.records] == ["event dropped, plugin is too slow"]


async def test_without_listeners_nothing_is_kept() -> None:
    notifier = Notifier(host_of(silent=object()))
    for _ in range(2000):
        notifier.publish(event())
