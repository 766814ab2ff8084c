"""Limits on requests: of one key, and of one address without a good key."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agentsvc.base import Throttle
from agentsvc.base.values import monotonic
from agentsvc.config.schema import LimitsConfig, ServerConfig
from agentsvc.http.middleware.rate_limit import RateLimit
from agentsvc.http.server.delayed_refusal import HOLD_SECONDS, LINES_A_MINUTE, RefusalDelay
from tests.conftest import FAST
from tests.plugin_loading import load_plugins
from tests.service import Service
from tests.troubles import TroubledWorld

PATH = "/api/v1/sandbox-rules"


@pytest.fixture
async def service(tmp_path: Path, fake_world: TroubledWorld) -> AsyncIterator[Service]:
    config = msgspec.structs.replace(
        FAST,
        limits=LimitsConfig(requests_per_minute=3, refused_per_minute=2),
        server=ServerConfig(trusted_proxies=("127.0.0.1",)),
    )
    service = Service(tmp_path / "data", config, lambda: load_plugins(fake=fake_world.plugin()))
    await service.start()
    yield service
    await service.close()


async def test_a_key_is_told_what_it_has_left_and_refused_beyond(service: Service) -> None:
    client, other = await service.make_client(), await service.make_client()
    answers = [await client.get(PATH) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 200, 429]
    assert [answer.headers["RateLimit"].split(";")[:2] for answer in answers] == [
        ['"key"', "r=2"],
        ['"key"', "r=1"],
        ['"key"', "r=0"],
        ['"key"', "r=0"],
    ]
    assert answers[3].headers["RateLimit-Policy"] == '"key";q=3;w=60'
    refusal = answers[3].json()
    assert refusal["code"] == "too_many_requests"
    # Published front ends show people this member of a refusal, and have no `detail`.
    assert refusal["message"] == refusal["detail"]
    assert 1 <= int(answers[3].headers["Retry-After"]) <= 20
    assert (await other.get(PATH)).status == 200


async def test_an_address_without_a_good_key_is_refused_but_not_who_has_one(
    service: Service,
) -> None:
    stranger, user = service.client_with("asvc_nonsense"), await service.make_client()
    far = {"X-Forwarded-For": "198.51.100.7"}
    statuses = [(await stranger.get(PATH, headers=far)).status for _ in range(3)]
    assert statuses == [401, 401, 429]
    refused = await stranger.get(PATH, headers=far)
    assert refused.headers["RateLimit"].startswith('"address";r=0')
    assert refused.headers["RateLimit-Policy"] == '"address";q=2;w=60'
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await user.get(PATH, headers=far)).status == 200
    elsewhere = {"X-Forwarded-For": "198.51.100.8"}
    assert (await stranger.get(PATH, headers=elsewhere)).status == 401
    assert (await stranger.get("/alive", headers=far)).status == 200


@pytest.mark.parametrize(
    "addresses",
    [
        ["198.51.100.7:40001", "198.51.100.7:40002", "198.51.100.7"],
        ["2001:db8::1", "2001:db8::2", "[2001:db8::2]:40001"],
    ],
)
async def test_who_comes_from_another_port_or_address_of_its_network_is_the_same(
    service: Service, addresses: list[str]
) -> None:
    stranger = service.client_with("asvc_nonsense")
    said = [{"X-Forwarded-For": address} for address in addresses]
    statuses = [(await stranger.get(PATH, headers=headers)).status for headers in said]
    assert statuses == [401, 401, 429]
    elsewhere = {"Forwarded": 'for="[2001:db8:0:1::1]:40001"'}
    assert (await stranger.get(PATH, headers=elsewhere)).status == 401


def test_who_was_not_seen_for_longest_is_forgotten() -> None:
    limit = RateLimit("key", 1)
    assert limit.take("first") is not None
    for number in range(10_000):
        limit.take(number)
    last, first = limit.take(9_999), limit.take("first")
    assert first is not None
    assert last is not None
    assert (first.retry_seconds, last.retry_seconds > 0) == (0, True)


def test_without_a_limit_nothing_is_counted() -> None:
    assert RateLimit("key", 0).take("anybody") is None


async def test_who_is_turned_away_again_and_again_waits_and_good_keys_do_not(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    server = msgspec.structs.replace(service.config.server, max_connections=20)
    limits = LimitsConfig(requests_per_minute=0, refused_per_minute=31)
    service.config = msgspec.structs.replace(service.config, limits=limits, server=server)
    await service.restart()
    stranger, user = service.client_with("asvc_nonsense"), await service.make_client()
    assert [(await stranger.get(PATH)).status for _ in range(30)] == [401] * 30
    # All of the rest at once: the 31st waits already, and while it did there would be one more.
    began = monotonic()
    with caplog.at_level("DEBUG", "agentsvc.http.middleware.pipeline"):
        late = [asyncio.ensure_future(stranger.get(PATH)) for _ in range(7)]  # noqa: TID251  # clients
        assert (await user.get(PATH)).status == 200
        answers = await asyncio.gather(*late)
    assert monotonic() - began >= HOLD_SECONDS
    assert sorted(answer.status for answer in answers) == [401, *[429] * 6]
    ends = [answer.headers.get("Connection") == "close" for answer in answers]
    # Five can be kept waiting, which is a quarter of the connections.
    assert sum(ends) <= 2
    levels = [one.levelno for one in caplog.records if getattr(one, "status", None) == 429]
    assert sorted(levels) in ([logging.DEBUG] * 6, [*[logging.DEBUG] * 5, logging.INFO])


async def test_there_are_so_many_places_to_wait_in() -> None:
    delay = RefusalDelay(1, seconds=0.05)
    assert sorted(await asyncio.gather(delay.hold(), delay.hold())) == [False, True]
    assert await delay.hold()


def test_the_log_tells_of_a_caller_once_a_minute() -> None:
    throttle = Throttle(LINES_A_MINUTE)
    told = [throttle.admits(caller) for caller in ("a", "a", "b", "a")]
    assert told == [True, False, True, False]
    for number in range(10_000):
        throttle.admits(str(number))
    assert throttle.admits("a")
    assert not throttle.admits("9999")
