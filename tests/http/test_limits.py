"""Limits on requests: of one key, and of one address without a good key."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from agentsvc.config import LimitsConfig, ServerConfig
from agentsvc.http.limits import Limit
from tests.conftest import FAST
from tests.core.troubles import TroubledWorld
from tests.plugins import load_plugins
from tests.service import Service

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
    assert answers[3].json()["code"] == "too_many_requests"
    assert 1 <= int(answers[3].headers["Retry-After"]) <= 20
    assert (await other.get(PATH)).status == 200


async def test_an_address_without_a_good_key_is_refused_and_no_other(service: Service) -> None:
    stranger, user = service.client_with("asvc_nonsense"), await service.make_client()
    far = {"X-Forwarded-For": "198.51.100.7"}
    statuses = [(await stranger.get(PATH, headers=far)).status for _ in range(3)]
    assert statuses == [401, 401, 429]
    refused = await user.get(PATH, headers=far)
    assert refused.headers["RateLimit"].startswith('"address";r=0')
    assert (await user.get(PATH, headers={"X-Forwarded-For": "198.51.100.8"})).status == 200
    assert (await stranger.get("/alive", headers=far)).status == 200


def test_who_was_not_seen_for_longest_is_forgotten() -> None:
    limit = Limit("key", 1)
    assert limit.take("first") is not None
    for number in range(10_000):
        limit.take(number)
    first, last = limit.look("first"), limit.look(9_999)
    assert first is not None
    assert last is not None
    assert (first.left, last.left) == (1, 0)


def test_without_a_limit_nothing_is_counted() -> None:
    assert Limit("key", 0).take("anybody") is None
    assert Limit("key", 0).look("anybody") is None
