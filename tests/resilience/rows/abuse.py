"""Who floods the server is turned away, and the others hardly notice.

Some users ask one after the other, from an address of their own; meanwhile somebody else floods the server from
another one, in every way in turn. Each way is compared with the time just before and after it. Where
there are two processors, the server and the user have one and the flood another, so that what the
flood itself uses is not taken for what it costs the server.
"""

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from agentsvc.base.values import monotonic
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.real import own_address
from tests.resilience.server import Server, serving

SLOW: Final = 1000
MAX: Final = 2.0
_SECONDS: Final = 20.0
_PAUSE: Final = 0.02
_OF_KEY: Final = 300
_OF_ADDRESS: Final = 120
_USERS: Final = 12
_USER: Final = "127.0.0.2"
_KINDS: Final = ("logins", "keys", "requests", "slow", "sockets")
_TURNED_AWAY: Final = {
    "logins": "429",
    "keys": "429",
    "requests": "429",
    "slow": "429",
    "sockets": "429",
}


class Visitors:
    """Users with good keys who ask one after another, each within the limits."""

    def __init__(self, session: aiohttp.ClientSession, url: str, keys: Sequence[str]) -> None:
        self._session = session
        self._url = url
        self._keys = itertools.cycle(keys)
        self.failed: list[str] = []

    async def ask(self, is_over: Callable[[], bool]) -> list[float]:
        """Ask until it is over and return the times it took, in seconds."""
        took: list[float] = []
        while not is_over():
            headers = {"X-Session-API-Key": next(self._keys)}
            began = monotonic()
            try:
                async with self._session.get(
                    f"{self._url}/api/v1/app-conversations/search", headers=headers
                ) as answer:
                    await answer.read()
                    if answer.status != 200:
                        self.failed.append(f"a user got {answer.status}")
            except (aiohttp.ClientError, TimeoutError) as exc:
                self.failed.append(f"a user got {type(exc).__name__}")
            took.append(monotonic() - began)
            await asyncio.sleep(_PAUSE)
        return took


def _p99(took: list[float]) -> float:
    return sorted(took)[int(len(took) * 0.99)] if took else 0.0


@contextmanager
def _apart(pid: int) -> Iterator[Callable[[int], None]]:
    """Put this program and another one on one processor; gives what puts a third one elsewhere."""
    every = sorted(os.sched_getaffinity(0))
    _put(pid, every[:1])
    _put(os.getpid(), every[:1])
    try:
        yield lambda third: _put(third, every[1:] or every)
    finally:
        _put(os.getpid(), every)


def _put(pid: int, processors: list[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), processors)


def _for(seconds: float) -> Callable[[], bool]:
    end = monotonic() + seconds
    return lambda: monotonic() >= end


async def _flood(
    server: Server, kind: str, count: int, seconds: float, key: str
) -> asyncio.subprocess.Process:
    port = server.url.rpartition(":")[2]
    # Of an address that many share the oldest connection makes room; of its own, it is refused.
    own = own_address() if kind in ("slow", "sockets") else "127.0.0.1"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.resilience.flood", kind, own, port, own),
        *(str(count), str(seconds), key),
        stdout=asyncio.subprocess.PIPE,
    )


async def run(ground: Ground) -> Outcome:
    seconds = max(4.0, _SECONDS * min(1.0, ground.scale))
    slow = ground.count(SLOW, least=250)
    config = {
        "server": {"host": "0.0.0.0"},  # noqa: S104  # to be reached from two addresses
        "limits": {"requests_per_minute": _OF_KEY, "refused_per_minute": _OF_ADDRESS},
    }
    times: dict[str, tuple[float, float]] = {}
    seen: dict[str, dict[str, int]] = {}
    async with serving(ground.place("server"), config=config) as server:
        other, *users = [await server.add_user(f"user {i}") for i in range(1 + _USERS)]
        connector = aiohttp.TCPConnector(local_addr=(_USER, 0))
        url = f"http://127.0.0.1:{server.url.rpartition(':')[2]}"
        async with aiohttp.ClientSession(connector=connector) as session:
            visitors = Visitors(session, url, [str(user.key) for user in users])
            with _apart(server.installation.pid) as put_elsewhere:
                before = await visitors.ask(_for(seconds / 2))
                for kind in _KINDS:
                    count = {"slow": slow, "sockets": 300}.get(kind, 16)
                    flood = await _flood(server, kind, count, seconds, str(other.key))
                    put_elsewhere(flood.pid)
                    during = await visitors.ask(_for(seconds))
                    said, _ = await flood.communicate()
                    seen[kind] = msgspec.json.decode(said)
                    after = await visitors.ask(_for(seconds / 2))
                    times[kind] = _p99(before + after), _p99(during)
                    before = after
    ratios = {kind: during / alone for kind, (alone, during) in times.items() if alone}
    missing = [
        f"{kind}: nobody was turned away: {seen[kind]}"
        for kind, status in _TURNED_AWAY.items()
        if not seen[kind].get(status)
    ]
    missing += [
        f"{kind}: no {name}"
        for kind, name in (
            ("logins", "retry-after"),
            ("keys", "retry-after"),
            ("requests", "ratelimit-policy"),
        )
        if not seen[kind].get(name)
    ]
    told = "; ".join(
        f"{kind} {sum(n for name, n in found.items() if name.isdigit()):,}, of which turned away"
        f" {found.get(_TURNED_AWAY[kind], 0):,}, p99 {times[kind][0] * 1000:.1f} ms alone and"
        f" {times[kind][1] * 1000:.1f} ms beside it"
        for kind, found in seen.items()
    )
    return Outcome(
        did=(
            f"limits set to {_OF_KEY} requests a minute of a key and {_OF_ADDRESS} refused ones of an"
            f" address; floods of {seconds:.0f} s each, with up to {slow} slow connections, on another"
            f" processor than the server and the user: {told}"
        ),
        figures=(
            zero("requests of other users that failed", visitors.failed),
            zero("floods that nobody turned away", missing),
            Figure(
                what="times the p99 of other users, at worst",
                value=round(max(ratios.values()), 2),
                at_most=MAX,
                is_time=True,
            ),
        ),
        problems=tuple(visitors.failed + missing),
    )


ROW: Final = Row(name="abuse", half=Half.IN, promise="abuse", run=run, is_alone=True)
