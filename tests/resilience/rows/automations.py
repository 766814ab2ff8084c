"""What is due becomes one conversation, and so does each delivery, however the server is killed.

Automations fall due, and a sender delivers out of order, repeats, replays and forges, while the server
is killed again and again. In the end the database says what became of each.
"""

import asyncio
import contextlib
import math
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec

from agentsvc.base.values import Secret, from_stored, now, to_stored
from tests.http.gateway.steps import until
from tests.plugin_loading import part
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, shares, zero
from tests.resilience.server import Server, serving

if TYPE_CHECKING:
    from webhooks.signing import sign
else:
    sign = part("webhooks.signing").sign

KILLS: Final = 100
JOBS: Final = 10_000
DELIVERIES: Final = 1_000
AUTOMATIONS: Final = 1_000
"""How many there are that are not due, while it is measured how late others are."""
LATE_SECONDS: Final = 1.0
PUNCTUAL: Final = 100
_BASE: Final = "/api/automation/v1"
_JOB: Final = "job "
_DELIVERED: Final = "delivered"
_DUE_SECONDS: Final = 2.0
"""How long after its beginning a life has jobs that fall due."""
_SETTLE_SECONDS: Final = 600.0
_STALL_SECONDS: Final = 60.0
"""How long what is open may stay as much as it is."""
_PUNCTUAL: Final = "punctual"
_BEGUN: Final = """
    SELECT r.started_at, r.due_at
    FROM plugin_automations_runs AS r JOIN conversations AS c ON c.id = r.conversation_id
    WHERE c.title LIKE ?
"""
_CONFIG: Final = {"automations": {"most_per_user": 100_000}}
_OPEN: Final = """
    SELECT (SELECT COUNT(*) FROM plugin_automations_runs WHERE status IN ('PENDING', 'RUNNING'))
         + (SELECT COUNT(*) FROM plugin_automations_automations
            WHERE json_extract(definition, '$.trigger.type') = 'once' AND next_at IS NOT NULL)
"""


class Sender:
    """Delivers each number until that is acknowledged, and now and then once more."""

    def __init__(self, ground: Ground, server: Server, path: str, secret: Secret) -> None:
        self._chance = ground.chance
        self._server = server
        self._path = path
        self._secret = secret
        self._client = server.client_with(None)
        self.acknowledged: set[int] = set()
        self.made = 0
        self.taken_forged = 0

    async def send(self, numbers: list[int]) -> None:
        """Deliver these, in any order, until each was acknowledged."""
        self._chance.shuffle(numbers)
        while numbers:
            number = numbers[0]
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
                if await self._deliver(number, self._secret) != 200:
                    raise ConnectionError
                self.acknowledged.add(numbers.pop(0))
                forged = Secret("whsec_Zm9yZ2VkIGZvcmdlZCBmb3JnZWQ=")
                self.taken_forged += await self._deliver(-number - 1, forged) == 200
                if self._chance.random() < 0.5:
                    await self._deliver(self._chance.choice(list(self.acknowledged)), self._secret)
            await asyncio.sleep(self._chance.uniform(0, 0.05))

    async def _deliver(self, number: int, secret: Secret) -> int:
        body = msgspec.json.encode({"number": number})
        signed = sign([secret], message_id=f"number-{number}", moment=now(), body=body)
        headers = {"Content-Type": "application/json", **signed}
        answer = await self._client.post(self._path, data=body, headers=headers)
        if answer.status == 200:
            self.made += len(answer.json()["runs_created"])
        return answer.status


async def run(ground: Ground) -> Outcome:
    kills, jobs = ground.count(KILLS, least=3), ground.count(JOBS, least=18)
    deliveries, others = ground.count(DELIVERIES, least=9), ground.count(AUTOMATIONS, least=5)
    async with serving(ground.place("server"), config=_CONFIG) as server:
        await server.client.save_settings()
        trigger = {"type": "webhook"}
        hook = await _create(server, _DELIVERED, trigger)
        sender = Sender(ground, server, hook["events_path"], Secret(hook["secret"]))
        late = await _lateness(ground, server, others)
        numbers, marks = iter(range(jobs)), iter(range(deliveries))
        for share, more in zip(shares(jobs, kills), shares(deliveries, kills), strict=True):
            for _ in range(share):
                due = now() + timedelta(seconds=ground.chance.uniform(0.2, _DUE_SECONDS))
                once = {"type": "once", "at": to_stored(due)}
                await _create(server, f"{_JOB}{next(numbers)}", once)
            sending = asyncio.get_running_loop().create_task(
                sender.send([next(marks) for _ in range(more)])
            )
            await asyncio.sleep(ground.chance.uniform(0, _DUE_SECONDS))
            await server.kill()
            await server.start()
            await sending
        await _settled(server)
        lost, doubled, failed = await asyncio.to_thread(_compare, server, jobs, sender)
        faults = await asyncio.to_thread(server.faults)
    return Outcome(
        did=(
            "automations fell due, and signed deliveries came out of order, again, and forged, while"
            " the server was killed; the conversations counted in the end"
        ),
        figures=(
            Figure(what="kills", value=kills, at_least=kills),
            Figure(what="due jobs", value=jobs, at_least=jobs),
            Figure(what="deliveries", value=len(sender.acknowledged), at_least=deliveries),
            Figure(
                what=f"s late, 99 % of those due beside {others} others",
                value=late,
                at_most=LATE_SECONDS,
                is_time=True,
            ),
            zero("lost", lost),
            zero("doubled", doubled),
            zero("failed", failed),
            zero("forged deliveries taken", sender.taken_forged),
            zero("faults of `integrity_check`", faults),
        ),
        problems=tuple(lost + doubled + failed + faults),
    )


async def _lateness(ground: Ground, server: Server, others: int) -> float:
    """Return how late 99 % of some automations begin that are due beside many others."""
    for number in range(others):
        yearly = {"type": "cron", "schedule": f"{number % 60} 0 1 1 *"}
        await _create(server, f"later {number}", yearly)
    count = ground.count(PUNCTUAL, least=3)
    begin = now() + timedelta(seconds=1 + count * 0.1)
    for number in range(count):
        once = {"type": "once", "at": to_stored(begin + timedelta(seconds=number * 0.2))}
        await _create(server, f"{_PUNCTUAL} {number}", once)
    await until(lambda: _is_begun(server, count), time_limit=_SETTLE_SECONDS)
    delays = sorted(
        (from_stored(started) - from_stored(due)).total_seconds()
        for started, due in server.query(_BEGUN, f"{_PUNCTUAL} %")
    )
    return delays[math.ceil(len(delays) * 0.99) - 1]


async def _settled(server: Server) -> None:
    """Wait until nothing is open; fails when that goes no further."""
    while left := server.query(_OPEN)[0][0]:
        started = asyncio.get_running_loop().time()
        while server.query(_OPEN)[0][0] >= left:
            if asyncio.get_running_loop().time() > started + _STALL_SECONDS:
                raise TimeoutError(f"{left} runs or jobs stay open")
            await asyncio.sleep(1)


def _is_begun(server: Server, count: int) -> bool:
    return len(server.query(_BEGUN, f"{_PUNCTUAL} %")) == count


async def _create(server: Server, name: str, trigger: dict[str, str]) -> dict[str, Any]:
    body = {
        "name": name,
        "prompt": "Work.",
        "trigger": trigger,
        "keep_alive": False,
    }
    answer = await server.client.post(_BASE, json=body)
    assert answer.status == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _compare(server: Server, jobs: int, sender: Sender) -> tuple[list[str], list[str], list[str]]:
    """Return what was lost, done twice, and has failed, by the database itself. Blocks."""
    begun = Counter(
        title
        for (title,) in server.query(
            "SELECT title FROM conversations WHERE trigger = 'automation' AND title NOT LIKE ?",
            f"{_PUNCTUAL} %",
        )
    )
    expected = Counter({f"{_JOB}{number}": 1 for number in range(jobs)})
    expected[_DELIVERED] = len(sender.acknowledged)
    lost = [f"{one}: {count}" for one, count in (expected - begun).items()]
    doubled = [f"{one}: {count}" for one, count in (begun - expected).items()]
    runs = server.query("SELECT key, status, error_detail FROM plugin_automations_runs")
    failed = [f"{key}: {status} {why}" for key, status, why in runs if status != "COMPLETED"]
    return lost, doubled, failed


ROW: Final = Row(
    name="automations",
    half=Half.LOST,
    promise="What is due, and what a webhook delivers, becomes one conversation",
    run=run,
)
