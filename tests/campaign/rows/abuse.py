"""Who floods the server is turned away, and the others hardly notice.

One user asks now and then, from an address of their own; meanwhile somebody else floods the server from
another one, in every way in turn. Each way is compared with the time just before it.
"""

import asyncio
import sys
from collections.abc import Callable
from typing import Final

import aiohttp
import msgspec

from agentsvc.values import monotonic
from tests.campaign.book import Figure, Ground, Half, Outcome, Row, zero
from tests.campaign.real import own_address
from tests.campaign.server import Server, serving

SLOW: Final = 1000
MOST: Final = 2.0
_SECONDS: Final = 20.0
_PAUSE: Final = 0.06
_OF_KEY: Final = 1200
_OF_ADDRESS: Final = 600
_USER: Final = "127.0.0.2"
_KINDS: Final = ("logins", "keys", "requests", "slow", "sockets")
_TURNED_AWAY: Final = {
    "logins": "429",
    "keys": "429",
    "requests": "429",
    "slow": "429",
    "sockets": "503",
}


class Visitor:
    """Somebody with a good key who asks one thing after another."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.failed: list[str] = []

    async def p99(self, is_over: Callable[[], bool]) -> float:
        """Ask until it is over and return the 99th percentile of the times, in seconds."""
        took: list[float] = []
        while not is_over():
            began = monotonic()
            try:
                async with self._session.get(
                    f"{self._url}/api/v1/app-conversations/search"
                ) as answer:
                    await answer.read()
                    if answer.status != 200:
                        self.failed.append(f"the user got {answer.status}")
            except (aiohttp.ClientError, TimeoutError) as exc:
                self.failed.append(f"the user got {type(exc).__name__}")
            took.append(monotonic() - began)
            await asyncio.sleep(_PAUSE)
        return sorted(took)[int(len(took) * 0.99)] if took else 0.0


def _for(seconds: float) -> Callable[[], bool]:
    end = monotonic() + seconds
    return lambda: monotonic() >= end


async def _flood(
    server: Server, kind: str, count: int, seconds: float, key: str
) -> asyncio.subprocess.Process:
    port = server.url.rpartition(":")[2]
    # Connections of this machine by loopback are not counted, those by its own address are.
    own = own_address() if kind in ("slow", "sockets") else "127.0.0.1"
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.campaign.flood", kind, own, port, own),
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
    ratios: dict[str, float] = {}
    seen: dict[str, dict[str, int]] = {}
    async with serving(ground.place("server"), config=config) as server:
        user, other = [await server.add_user(name) for name in ("ann", "bob")]
        connector = aiohttp.TCPConnector(local_addr=(_USER, 0))
        headers = {"X-Session-API-Key": str(user.key)}
        url = f"http://127.0.0.1:{server.url.rpartition(':')[2]}"
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
            visitor = Visitor(session, url)
            await visitor.p99(_for(1.0))
            for kind in _KINDS:
                before = await visitor.p99(_for(seconds / 2))
                count = {"slow": slow, "sockets": 150}.get(kind, 16)
                flood = await _flood(server, kind, count, seconds, str(other.key))
                during = await visitor.p99(_for(seconds))
                said, _ = await flood.communicate()
                seen[kind] = msgspec.json.decode(said)
                ratios[kind] = during / before if before else 0.0
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
        f" {found.get(_TURNED_AWAY[kind], 0):,}, p99 x {ratios[kind]:.1f}"
        for kind, found in seen.items()
    )
    return Outcome(
        did=(
            f"limits set to {_OF_KEY} requests a minute of a key and {_OF_ADDRESS} refused ones of an"
            f" address; floods of {seconds:.0f} s each, with up to {slow} slow connections: {told}"
        ),
        figures=(
            zero("requests of the other user that failed", visitor.failed),
            zero("floods that nobody turned away", missing),
            Figure(
                what="times the p99 of another user, at worst",
                value=round(max(ratios.values()), 2),
                at_most=MOST,
                is_time=True,
            ),
        ),
        problems=tuple(visitor.failed + missing),
    )


ROW: Final = Row(name="abuse", half=Half.IN, promise="abuse", run=run, is_alone=True)
