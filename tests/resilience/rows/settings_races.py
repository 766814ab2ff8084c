"""Settings never lose a field, whoever changes what at the same time.

Pairs of changes of different fields are sent at once, through both generations of the API. What is
read afterwards is compared as a whole with what it has to be. Every so often a client sends back
all that it has read, as front ends do.
"""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

from agentsvc.testing.llm import DEMO
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import serving
from tests.service import Client

PAIRS: Final = 10_000
_ROUND_TRIPS: Final = 10
"""One pair of so many is followed by a round trip."""
_USERS: Final = 8

_FLAT: Final = "/api/settings"
_NESTED: Final = "/api/v1/settings"


def _text(chance: Random) -> str:
    letters = "abcäé漢😀 '\"\\{}<>%_-"
    return "".join(chance.choice(letters) for _ in range(chance.randint(1, 20))) + "x"


def _flag(chance: Random) -> bool:
    return chance.random() < 0.5


FIELDS: Final[Mapping[str, Callable[[Random], Any]]] = {
    "language": _text,
    "agent": lambda _: "CodeActAgent",
    "max_iterations": lambda chance: chance.randint(1, 500),
    "confirmation_mode": _flag,
    "llm_model": lambda chance: f"openai/model-{chance.randint(1, 10**6)}",
    "llm_base_url": lambda chance: f"https://model-{chance.randint(1, 10**6)}.example.org/v1",
    "remote_runtime_resource_factor": lambda chance: chance.choice((1, 2, 4, 8)),
    "enable_default_condenser": _flag,
    "condenser_max_size": lambda chance: chance.randint(20, 500),
    "enable_sound_notifications": _flag,
    "enable_proactive_conversation_starters": _flag,
    "enable_solvability_analysis": _flag,
    "user_consents_to_analytics": _flag,
    "sandbox_base_container_image": _text,
    "sandbox_runtime_container_image": _text,
    "max_budget_per_task": lambda chance: chance.randint(1, 10**6) / 8,
    "email": lambda chance: f"u{chance.randint(1, 10**6)}@example.org",
    "git_user_name": _text,
    "git_user_email": lambda chance: f"g{chance.randint(1, 10**6)}@example.org",
}
"""What can be set, and how its values come about."""


class Pairs:
    """One user whose settings are changed in two places at once."""

    def __init__(self, client: Client, chance: Random) -> None:
        self._client = client
        self._chance = chance
        self._expected: dict[str, Any] = {}
        self.lost: list[str] = []
        self.refused: list[str] = []
        self.round_trips = 0

    async def run(self, count: int) -> None:
        keys = {"llm_api_key": "model-key-of-a-user", "search_api_key": "search-key"}
        await self._send(_FLAT, keys)
        for number in range(count):
            names = self._chance.sample(sorted(FIELDS), 4)
            await asyncio.gather(
                *(self._change(self._chance.choice((_FLAT, _NESTED)), names[i::2]) for i in (0, 1))
            )
            seen = await self._read()
            if number % _ROUND_TRIPS == 0:
                await self._send(_FLAT, {**seen, "llm_api_key": None, "search_api_key": None})
                self.round_trips += 1
                await self._read()

    async def _change(self, path: str, names: list[str]) -> None:
        values = {name: FIELDS[name](self._chance) for name in names}
        if await self._send(path, values):
            self._expected |= values

    async def _send(self, path: str, values: dict[str, Any]) -> bool:
        answer = await self._client.post(path, json=values)
        if answer.status != 200:
            self.refused.append(f"{path} {values}: {answer.status} {answer.text}")
        return answer.status == 200

    async def _read(self) -> dict[str, Any]:
        seen: dict[str, Any] = (await self._client.get(_FLAT)).json()
        self.lost += [
            f"{name} is {seen[name]!r}, not {value!r}"
            for name, value in self._expected.items()
            if seen[name] != value
        ]
        if not (seen["llm_api_key_set"] and seen["search_api_key_set"]):
            self.lost.append("a key")
        return seen


async def run(ground: Ground) -> Outcome:
    pairs = ground.count(PAIRS, least=_USERS * 3)
    async with serving(ground.place("server"), scripts={"demo": DEMO}) as server:
        users = [
            Pairs(await server.add_user(f"user{i}"), Random(ground.seed + i))  # noqa: S311  # has to be repeatable
            for i in range(_USERS)
        ]
        await asyncio.gather(*(user.run(-(-pairs // _USERS)) for user in users))
    lost = [problem for user in users for problem in user.lost]
    refused = [problem for user in users for problem in user.refused]
    trips = sum(user.round_trips for user in users)
    return Outcome(
        did=(
            f"pairs of changes at once, of {len(FIELDS)} fields with made-up values, through V0 and"
            f" V1, by {_USERS} users at a time; all fields read and compared after each;"
            f" {trips} times all that was read sent back"
        ),
        figures=(
            Figure(what="pairs", value=-(-pairs // _USERS) * _USERS, at_least=pairs),
            zero("fields lost", lost),
            zero("changes refused", refused),
        ),
        problems=tuple(lost + refused),
    )


ROW: Final = Row(
    name="settings",
    half=Half.LOST,
    promise="settings never lose a field",
    run=run,
)
