"""A revocation counts at once: what the key had opened is closed, over every transport.

Keys are revoked by their user, and their users are shut out; the sockets are streams of events.
"""

import asyncio
from typing import Any, Final

import aiohttp

from agentsvc.base.values import monotonic
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Client

REVOCATIONS: Final = 1000
SECONDS: Final = 1.0
_AT_ONCE: Final = 10
_STREAM: Final = "/api/v1/events/stream"
_CLOSED: Final = (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)


class Revocations:
    """Opens sockets with keys, and takes the keys back."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.took: list[float] = []
        self.open: list[str] = []
        self.kinds = {"key": 0, "user": 0, "role": 0}

    async def revoke_keys(self, client: Client, count: int) -> None:
        """Revoke keys of a user, one after the other."""
        for number in range(count):
            made = (await client.post("/api/keys", json={"name": f"k{number}"})).json()

            async def revoke(made: dict[str, Any] = made) -> None:
                answer = await client.delete(f"/api/keys/{made['id']}")
                assert answer.status == 200, answer.text

            await self._try("key", made["key"], revoke)

    async def shut_out(self, name: str, count: int) -> None:
        """Block a user and let them in again, one time after the other."""
        user = await self._server.add_user(name)
        admin = self._server.client
        users = {one["name"]: one["id"] for one in (await admin.get("/api/v1/users")).json()}
        path = f"/api/v1/users/{users[name]}"
        for _ in range(count):

            async def block() -> None:
                answer = await admin.patch(path, json={"is_blocked": True})
                assert answer.status == 200, answer.text

            await self._try("user", str(user.key), block)
            await admin.patch(path, json={"is_blocked": False})

    async def _try(self, kind: str, key: str, revoke: Any) -> None:
        self.kinds[kind] += 1
        async with aiohttp.ClientSession(headers={"X-Session-API-Key": key}) as session:
            took = await self._until_closed(session, revoke)
            if took is None:
                self.open.append(f"{kind}: its socket stays open")
                return
            self.took.append(took)
            async with session.get(self._server.url + "/api/keys/current") as answer:
                if answer.status not in (401, 403):
                    self.open.append(f"{kind}: its key still opens: {answer.status}")

    async def _until_closed(self, session: aiohttp.ClientSession, revoke: Any) -> float | None:
        """Open a socket, revoke, and return how long it was open after that; None for ever."""
        async with session.ws_connect(self._server.url + _STREAM, heartbeat=None) as socket:
            await self._is_answered(socket)
            began = monotonic()
            await revoke()
            try:
                while (await socket.receive(timeout=30)).type not in _CLOSED:
                    pass
            except TimeoutError:
                return None
            return monotonic() - began

    async def _is_answered(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Wait until the socket is one that the server knows."""
        await socket.ping()
        await asyncio.sleep(0)
        assert not socket.closed


async def run(ground: Ground) -> Outcome:
    count = ground.count(REVOCATIONS, least=10)
    async with serving(ground.place("server")) as server:
        revocations = Revocations(server)
        users = [await server.add_user(f"user{i}") for i in range(_AT_ONCE)]
        share = -(-count // (_AT_ONCE + 2))
        await asyncio.gather(
            *(revocations.revoke_keys(user, share) for user in users),
            *(revocations.shut_out(f"out{i}", share) for i in range(2)),
        )
    slowest = max(revocations.took, default=0.0)
    kinds = ", ".join(
        f"{number} of a {kind}" for kind, number in revocations.kinds.items() if number
    )
    return Outcome(
        did=f"WebSockets of events opened, then revoked: {kinds}; {_AT_ONCE + 2} at a time",
        figures=(
            Figure(what="revocations", value=sum(revocations.kinds.values()), at_least=count),
            zero("sockets or keys left open", revocations.open),
            Figure(
                what="s until closed at most",
                value=round(slowest, 2),
                at_most=SECONDS,
                is_time=True,
            ),
        ),
        problems=tuple(revocations.open),
    )


ROW: Final = Row(name="revocation", half=Half.IN, promise="revocation", run=run, is_alone=True)
