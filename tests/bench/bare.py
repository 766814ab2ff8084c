"""The floor: a server of bare aiohttp that does what ours does, and nothing else.

`python -m tests.bench.bare PORT`. It ends when it is terminated.
"""

import asyncio
import sys
from collections import defaultdict

from aiohttp import web

_PART = bytes(range(32, 127)) * 11


async def _alive(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _data(request: web.Request) -> web.Response:
    """Answer with as many bytes as are asked for."""
    size = int(request.query["bytes"])
    body = (_PART * (size // len(_PART) + 1))[:size]
    return web.Response(body=body, content_type="application/json")


async def _sink(request: web.Request) -> web.Response:
    await request.read()
    return web.json_response({"success": True})


class _Fan:
    """Tells everyone who listens in a room what anyone says there."""

    def __init__(self) -> None:
        self._rooms: defaultdict[str, set[asyncio.Queue[bytes]]] = defaultdict(set)

    async def listen(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        waiting: asyncio.Queue[bytes] = asyncio.Queue()
        room = self._rooms[request.query["room"]]
        room.add(waiting)
        try:
            await response.write(b"event: ready\ndata: {}\n\n")
            while True:
                await response.write(b"event: event\ndata: " + await waiting.get() + b"\n\n")
        finally:
            room.discard(waiting)

    async def tell(self, request: web.Request) -> web.Response:
        said = await request.read()
        for waiting in self._rooms[request.query["room"]]:
            waiting.put_nowait(said)
        return web.json_response({"success": True})


def main(port: int) -> None:
    app = web.Application()
    fan = _Fan()
    app.router.add_get("/alive", _alive)
    app.router.add_get("/data", _data)
    app.router.add_post("/sink", _sink)
    app.router.add_get("/stream", fan.listen)
    app.router.add_post("/tell", fan.tell)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
