"""A flood from inside of a sandbox does not shut others out, and stays within a budget.

At the defaults, over the loopback address by which sandboxes reach the server, which no limit per
address counts. Beside it another user with a good key asks on: each request has to be answered.
"""

import asyncio
import contextlib
from typing import Any, Final

import aiohttp
import msgspec

from agentsvc.base.values import monotonic, new_id
from agentsvc.config.schema import LimitsConfig
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.pair import Attack, Pair, Side, attacking_pair, not_at_default

_SECONDS: Final = 20.0
_ANSWER_SECONDS: Final = 5.0
_AT_ONCE: Final = 64 << 20
_MAX_ADOPTED: Final = 100
_HALF_OPEN: Final = 600
_SOCKETS: Final = 150
FLOOD: Final = r"""
import socket, threading, urllib.parse, uuid
place = urllib.parse.urlsplit(os.environ.get("OH_WEBHOOKS_0_BASE_URL") or know["url"])
target = (place.hostname, place.port)
KEY, seen, lock = know["key"], {"opened": 0, "taken": 0, "bytes": 0, "turned away": 0, "failed": 0}, threading.Lock()

def note(name, count=1):
    with lock:
        seen[name] += count

def ask(stream, method, path, body=b"", key=KEY):
    head = f"{method} {path} HTTP/1.1\r\nHost: {target[0]}:{target[1]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nX-Session-API-Key: {key}\r\n\r\n"
    stream.sendall(head.encode() + body)
    data = b""
    while b"\r\n\r\n" not in data:
        part = stream.recv(65536)
        if not part:
            raise OSError("closed")
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            left = int(line.split(b":")[1]) - len(body)
            while left > 0:
                left -= len(stream.recv(left))
    return int(head.split()[1])

def half_open():
    held = []
    while goes_on():
        if len(held) < know["count"]:
            try:
                stream = socket.create_connection(target, timeout=3)
                stream.sendall(b"POST /api/v1/webhooks/conversations HTTP/1.1\r\nX-Slow: ")
                held.append(stream)
                note("opened")
            except OSError:
                note("failed")
                time.sleep(0.1)
        else:
            time.sleep(0.05)

def sockets():
    held = []
    while goes_on():
        if len(held) < know["count"] // 8:
            try:
                stream = socket.create_connection(target, timeout=3)
                stream.settimeout(3)
                stream.sendall(b"GET /api/v1/events/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
                told = stream.recv(100)
                note("opened" if b" 101 " in told else "turned away")
                held.append(stream)
            except OSError:
                note("failed")
                time.sleep(0.1)
        else:
            time.sleep(0.05)
            for stream in held:
                stream.setblocking(False)
                try:
                    if not stream.recv(1000):
                        raise ConnectionError
                except BlockingIOError:
                    continue
                except OSError:
                    held.remove(stream)
                    stream.close()
                    break

def reports(number):
    path = f"/api/v1/webhooks/events/{know['conversation']}"
    while goes_on():
        try:
            with socket.create_connection(target, timeout=10) as stream:
                stream.settimeout(20)
                while goes_on():
                    events = [{"id": str(uuid.uuid4()), "timestamp": "2026-01-31T12:00:00.000000", "source": "agent", "kind": "PauseEvent", "note": "x" * 100000} for _ in range(10)]
                    body = json.dumps(events).encode()
                    status = ask(stream, "POST", path, body)
                    note("taken" if status < 300 else "turned away")
                    note("bytes", len(body) if status < 300 else 0)
                    if status == 429:
                        time.sleep(0.05)
        except OSError:
            note("failed")
            time.sleep(0.1)

def adopts(number):
    while goes_on():
        try:
            with socket.create_connection(target, timeout=10) as stream:
                stream.settimeout(20)
                while goes_on():
                    body = json.dumps({"id": str(uuid.uuid4()), "execution_status": "running"}).encode()
                    status = ask(stream, "POST", "/api/v1/webhooks/conversations", body)
                    note("taken" if status < 300 else "turned away")
                    if status == 429:
                        time.sleep(0.05)
        except OSError:
            note("failed")
            time.sleep(0.1)

kind = know["kind"]
works = {"half-open": [half_open], "sockets": [sockets] * 8, "reports": [lambda: reports(1)] * 4, "adopted": [lambda: adopts(1)] * 4}[kind]
threads = [threading.Thread(target=work, daemon=True) for work in works]
for thread in threads:
    thread.start()
while goes_on():
    time.sleep(0.05)
finish(seen)
"""


class Others:
    """A user with a good key, who asks anew each time; remembers what was not answered."""

    def __init__(self, pair: Pair) -> None:
        self._url = f"{pair.server.installation.url}/api/v1/app-conversations/search"
        self._headers = {"X-Session-API-Key": str(pair.victim.client.key)}
        self.asked = 0
        self.slowest = 0.0
        self.failed: list[str] = []

    async def ask_for(self, seconds: float, what: str) -> None:
        """Ask for so long."""
        end = monotonic() + seconds
        while monotonic() < end:
            began = monotonic()
            try:
                # A connection of its own each time, as somebody who comes anew has.
                async with (
                    asyncio.timeout(_ANSWER_SECONDS),
                    aiohttp.ClientSession(headers=self._headers) as session,
                    session.get(self._url) as answer,
                ):
                    await answer.read()
                    if answer.status != 200:
                        self.failed.append(f"{what}: another user got {answer.status}")
            except (aiohttp.ClientError, TimeoutError) as exc:
                self.failed.append(f"{what}: another user got {type(exc).__name__}")
            if what == "sockets":
                await self._listen()
            self.asked += 1
            self.slowest = max(self.slowest, monotonic() - began)
            await asyncio.sleep(0.1)

    async def _listen(self) -> None:
        """Open the stream of events, as a console that is opened does."""
        url = self._url.replace("app-conversations/search", "events/stream")
        try:
            async with (
                asyncio.timeout(_ANSWER_SECONDS),
                aiohttp.ClientSession(headers=self._headers) as session,
                session.ws_connect(url) as socket,
            ):
                with contextlib.suppress(TimeoutError):
                    told = await socket.receive(timeout=0.3)
                    if told.type is not aiohttp.WSMsgType.TEXT:
                        self.failed.append(f"sockets: another user's was closed: {told.data}")
        except (aiohttp.ClientError, TimeoutError) as exc:
            self.failed.append(f"sockets: another user's is not opened: {exc}")


async def _report_a_conversation(side: Side) -> str:
    """Return a conversation of the sandbox that it has reported itself."""
    name = new_id()
    body = {"id": name, "execution_status": "running"}
    path = "/api/v1/webhooks/conversations"
    headers = {"X-Session-API-Key": side.inside.key, "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:
        url = side.client.base_url + path
        async with session.post(url, data=msgspec.json.encode(body)) as answer:
            assert answer.status < 300, await answer.text()
    return name


def _over(kind: str, said: Any, took: float) -> list[str]:
    """Say what a flood was let do in so many seconds that no budget bounded."""
    rate = LimitsConfig().report_bytes_per_minute / 60
    if kind == "reports" and said["bytes"] > _AT_ONCE + rate * (took + 2):
        return [f"reports: {said['bytes']:,} bytes of events were taken in {took:.0f} s"]
    if kind == "adopted" and said["taken"] > _MAX_ADOPTED:
        return [f"adopted: {said['taken']} conversations were taken"]
    return []


async def run(ground: Ground) -> Outcome:
    seconds = max(5.0, _SECONDS * min(1.0, ground.scale))
    problems: list[str] = []
    told: dict[str, Any] = {}
    async with attacking_pair(ground.place("server")) as pair:
        problems += not_at_default(pair)
        others = Others(pair)
        conversation = await _report_a_conversation(pair.attacker)
        counts = {"half-open": _HALF_OPEN, "sockets": _SOCKETS}
        for kind in ("half-open", "sockets", "reports", "adopted"):
            began = monotonic()
            attack = await Attack.begin(
                pair.attacker,
                FLOOD,
                seconds=seconds + 60,
                kind=kind,
                key=pair.attacker.inside.key,
                conversation=conversation,
                url=pair.server.installation.url,
                count=counts.get(kind, 0),
            )
            await asyncio.sleep(1)
            await others.ask_for(seconds, kind)
            told[kind] = await attack.finish()
            problems += _over(kind, told[kind], monotonic() - began)
            await asyncio.sleep(1)
        faults = [] if (await pair.victim.client.get("/ready")).status == 200 else ["not ready"]
    said = "; ".join(f"{kind}: {found}" for kind, found in told.items())
    return Outcome(
        did=f"floods of {seconds:.0f} s each from inside of a real sandbox, beside another user: {said}",
        figures=(
            Figure(what="requests of another user", value=others.asked, at_least=4 * seconds),
            zero("that were not answered", others.failed),
            zero("floods without a bound", problems + faults),
            Figure(
                what="s the slowest of them",
                value=round(others.slowest, 2),
                at_most=_ANSWER_SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(others.failed + problems + faults),
    )


ROW: Final = Row(name="floods-inside", half=Half.IN, promise="floods from inside", run=run)
