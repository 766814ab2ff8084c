"""A request with an `Idempotency-Key` has one effect and one answer, however often it is sent.

Each is sent by several at once, again after its answer, again after a restart, and again when its
answer is nearly as old as it may become. In some laps the server is killed in the midst of them.
"""

import asyncio
import contextlib
import itertools
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.base.values import to_stored
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Answer

IDEMPOTENCY: Final = 10_000
KEPT: Final = timedelta(hours=24)
_AT_ONCE: Final = 4
_OF_EACH: Final = 3
_RESTARTS: Final = 4
"""In one lap of so many the server is restarted between two repeats."""
_KILLS: Final = 3
"""In one lap of so many it is killed."""
_ASKED_AGAIN: Final = 200
_BUSY: Final = ("request_in_progress",)
_V1: Final = "/api/v1/app-conversations"
_HOOKS: Final = "/api/v1/webhook-subscriptions"
_HEADER: Final = "Idempotency-Key"
_LIVED_IN: Final = "SELECT sandbox_id FROM conversations WHERE sandbox_id IS NOT NULL"
_PASSING: Final = ("sandbox", "webhook")
"""Kinds of which what was made is deleted after each lap."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation that is spoken to, and where it runs."""

    conversation_id: str
    sandbox_id: str


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A request that makes or sends something, and how much of that there is."""

    name: str
    make: Callable[[Target, str], tuple[str, dict[str, Any]]]
    """Returns path and body, with a tag that tells it from all others."""
    count: Callable[[Server, Target], int]


def _rows(table: str, where: str = "TRUE") -> Callable[[Server, Target], int]:
    sql = f"SELECT COUNT(*) FROM {table} WHERE {where}"  # noqa: S608  # names of the schema
    return lambda server, _: int(server.query(sql)[0][0])


def _said(prefix: str) -> Callable[[Server, Target], int]:
    """Count what the agent itself was told."""

    def count(server: Server, target: Target) -> int:
        bodies = server.place.agent.sandboxes[target.sandbox_id].bodies
        texts = [body for path, body in bodies if path.endswith("/events")]
        return sum(f"{prefix} " in str(body.get("content")) for body in texts)

    return count


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


KINDS: Final = (
    Kind(
        name="secret",
        make=lambda _, tag: ("/api/v1/secrets", {"name": f"R_{tag}", "value": tag}),
        count=_rows("secrets", "name LIKE 'R%'"),
    ),
    Kind(
        name="secret of V0",
        make=lambda _, tag: ("/api/secrets", {"name": f"OLD_{tag}", "value": tag}),
        count=_rows("secrets", "name LIKE 'OLD%'"),
    ),
    Kind(
        name="key",
        make=lambda _, tag: ("/api/keys", {"name": f"key {tag}"}),
        count=_rows("api_keys", "name LIKE 'key %'"),
    ),
    Kind(
        name="user",
        make=lambda _, tag: ("/api/v1/users", {"name": f"user-{tag}"}),
        count=_rows("users", "name LIKE 'user-%'"),
    ),
    Kind(
        name="webhook",
        make=lambda _, tag: (_HOOKS, {"url": f"https://example.org/{tag}", "description": tag}),
        count=_rows("webhook_subscriptions"),
    ),
    Kind(
        name="sandbox",
        make=lambda _, tag: ("/api/v1/sandboxes", {}),
        count=_rows("sandboxes", f"id NOT IN ({_LIVED_IN})"),
    ),
    Kind(
        name="start",
        make=lambda to, tag: (_V1, {"title": f"start {tag}", "sandbox_id": to.sandbox_id}),
        count=_rows("start_tasks", "generation = 'v1'"),
    ),
    Kind(
        name="start of V0",
        make=lambda _, tag: ("/api/conversations", {}),
        count=_rows("start_tasks", "generation = 'v0'"),
    ),
    Kind(
        name="message",
        make=lambda to, tag: (f"{_V1}/{to.conversation_id}/send-message", _text(f"new {tag}")),
        count=_said("new"),
    ),
    Kind(
        name="message of V0",
        make=lambda to, tag: (
            f"/api/conversations/{to.conversation_id}/message",
            {"message": f"old {tag}"},
        ),
        count=_said("old"),
    ),
    Kind(
        name="pending message",
        make=lambda to, tag: (
            f"/api/v1/conversations/{to.conversation_id}/pending-messages",
            _text(f"pending {tag}"),
        ),
        count=_said("pending"),
    ),
)


class Request(msgspec.Struct, kw_only=True, eq=False):
    """One request with a key, and what was answered to it first."""

    kind: str
    tag: str
    path: str
    body: dict[str, Any]
    first: tuple[int, bytes] | None = None


class Clients:
    """Those who send the same again and again."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sent = 0
        self.requests: list[Request] = []
        self.differences: list[str] = []

    async def send(self, request: Request) -> None:
        """Send it until it is answered, and compare with what was answered before."""
        self.sent += 1
        answer = await self._ask(request)
        found = (answer.status, answer.body)
        if answer.status >= 300:
            self.differences.append(f"{request.kind}: {answer.status} {answer.text[:200]}")
        elif request.first is None:
            request.first = found
        elif request.first != found:
            self.differences.append(f"{request.kind}: {found} instead of {request.first}")

    async def send_at_once(self, requests: list[Request]) -> None:
        """Send each several times at once; some may not be answered, if the server is gone."""

        async def try_it(request: Request) -> None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await self.send(request)

        await asyncio.gather(*(try_it(one) for one in requests for _ in range(_AT_ONCE)))

    async def send_again(self, requests: list[Request]) -> None:
        """Send each once more, a few at a time."""
        for some in itertools.batched(requests, _AT_ONCE):
            await asyncio.gather(*map(self.send, some))

    async def _ask(self, request: Request) -> Answer:
        headers = {_HEADER: f'"{request.tag}"'}
        while True:
            answer = await self._server.client.post(
                request.path, json=request.body, headers=headers
            )
            if answer.status != 409 or answer.json().get("code") not in _BUSY:
                return answer
            await asyncio.sleep(0.01)


async def run(ground: Ground) -> Outcome:
    wanted = ground.count(IDEMPOTENCY, least=100)
    doubled: list[str] = []
    config = {"sandboxes": {"max_running": 200}}
    laps = kills = 0
    async with serving(ground.place("server"), config=config) as server:
        target = await _make_target(server)
        clients = Clients(server)
        at_first = await asyncio.to_thread(_count_all, server, target)
        while clients.sent - len(clients.requests) < wanted:
            is_cut = laps % _KILLS == 1
            doubled += await _lap(ground, server, target, clients, laps, is_cut=is_cut)
            laps += 1
            kills += is_cut
        at_last = await asyncio.to_thread(_count_all, server, target)
        doubled += [
            f"{name}: {at_last[name] - count} in all instead of {laps * _OF_EACH}"
            for name, count in at_first.items()
            if name not in _PASSING and at_last[name] - count != laps * _OF_EACH
        ]
        await server.installation.stop()
        await asyncio.to_thread(_make_older, server.database, KEPT - timedelta(minutes=10))
        await server.start()
        few = ground.chance.sample(clients.requests, min(_ASKED_AGAIN, len(clients.requests)))
        await clients.send_again(few)
    repeats = clients.sent - len(clients.requests)
    return Outcome(
        did=(
            f"{len(clients.requests)} requests of {len(KINDS)} kinds ("
            + ", ".join(kind.name for kind in KINDS)
            + f"), each {_AT_ONCE} times at once and twice later, in one lap of {_RESTARTS} after a"
            f" restart; {kills} kills in the midst; {len(few)} of them once more when the answers were almost 24 h old"
        ),
        figures=(
            Figure(what="repeats", value=repeats, at_least=wanted),
            zero("effects too many or too few", doubled),
            zero("other answers", clients.differences),
        ),
        problems=tuple(doubled + clients.differences),
    )


async def _make_target(server: Server) -> Target:
    await server.client.save_settings()
    conversation_id = await server.client.start_conversation(None)
    found = await server.client.conversation(conversation_id)
    return Target(conversation_id=conversation_id, sandbox_id=found["sandbox_id"])


async def _lap(
    ground: Ground, server: Server, target: Target, clients: Clients, number: int, *, is_cut: bool
) -> list[str]:
    """Send new requests in every way there is, and return which had not one effect each."""
    before = await asyncio.to_thread(_count_all, server, target)
    requests = [_new(kind, target, f"{number}-{i}") for kind in KINDS for i in range(_OF_EACH)]
    clients.requests += requests
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.send_at_once(requests))
        if is_cut:
            await asyncio.sleep(ground.chance.uniform(0, 0.3))
            await server.kill()
    if is_cut:
        await server.start()
    await clients.send_again(requests)
    if number % _RESTARTS == 0:
        await server.installation.restart()
    await clients.send_again(requests)
    wrong = await _settled(server, target, before)
    await _tidy(server, target)
    return [f"{'cut off: ' if is_cut else ''}{one}" for one in wrong]


def _new(kind: Kind, target: Target, tag: str) -> Request:
    tag = tag.replace("-", "_")
    path, body = kind.make(target, tag)
    return Request(kind=kind.name, tag=f"{kind.name} {tag}", path=path, body=body)


def _count_all(server: Server, target: Target) -> dict[str, int]:
    return {kind.name: kind.count(server, target) for kind in KINDS}


async def _settled(server: Server, target: Target, before: dict[str, int]) -> list[str]:
    """Wait until what was accepted is done, and a moment for what should not be."""
    wrong: list[str] = []
    for _ in range(100):
        after = await asyncio.to_thread(_count_all, server, target)
        wrong = [
            f"{name}: {after[name] - count} instead of {_OF_EACH}"
            for name, count in before.items()
            if after[name] - count != _OF_EACH
        ]
        if not wrong:
            break
        await asyncio.sleep(0.1)
    return wrong


async def _tidy(server: Server, target: Target) -> None:
    """Delete the sandboxes and the webhooks that were made."""
    page = (await server.client.get("/api/v1/sandboxes/search?limit=100")).json()["items"]
    paths = [f"/api/v1/sandboxes/{one['id']}" for one in page if one["id"] != target.sandbox_id]
    paths += [f"{_HOOKS}/{one['id']}" for one in (await server.client.get(_HOOKS)).json()]
    for some in itertools.batched(paths, _AT_ONCE):
        await asyncio.gather(*map(server.client.delete, some))


def _make_older(database: Path, age: timedelta) -> None:
    """Have the answers that are kept be so much older. The server is not running."""
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        kept = db.execute("SELECT id, created_at FROM kept_answers").fetchall()
        older = [(to_stored(datetime.fromisoformat(at) - age), one) for one, at in kept]
        db.executemany("UPDATE kept_answers SET created_at = ? WHERE id = ?", older)


ROW: Final = Row(
    name="repeats",
    half=Half.LOST,
    promise="a request that is repeated has one effect and one answer",
    run=run,
)
