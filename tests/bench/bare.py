"""The floor: a server of bare aiohttp that does what ours does, and nothing else.

`python -m tests.bench.bare PORT`. It ends when it is terminated.
"""

import asyncio
import sys
from collections import defaultdict

import msgspec
from aiohttp import web

from agentsvc.http.v1.conversations import AppConversation
from agentsvc.http.wire import Page

_PART = bytes(range(32, 127)) * 11


async def _alive(request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _data(request: web.Request) -> web.Response:
    """Answer with as many bytes as are asked for."""
    size = int(request.query["bytes"])
    body = (_PART * (size // len(_PART) + 1))[:size]
    return web.Response(body=body, content_type="application/json")


class _Structs:
    """Answers with the structs of a page that it was given, encoded anew each time."""

    def __init__(self) -> None:
        self._page: object = None
        self._encoder = msgspec.json.Encoder()

    async def take(self, request: web.Request) -> web.Response:
        body = await request.read()
        try:
            self._page = msgspec.json.decode(body, type=Page[AppConversation])
        except msgspec.ValidationError:
            # Events are bytes to the server, too.
            self._page = msgspec.json.decode(body, type=Page[msgspec.Raw])
        return web.json_response({"success": True})

    async def answer(self, request: web.Request) -> web.Response:
        body = self._encoder.encode(self._page)
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
    fan, structs = _Fan(), _Structs()
    app.router.add_get("/alive", _alive)
    app.router.add_get("/data", _data)
    app.router.add_post("/sink", _sink)
    app.router.add_post("/structs", structs.take)
    app.router.add_get("/structs", structs.answer)
    app.router.add_get("/stream", fan.listen)
    app.router.add_post("/tell", fan.tell)
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
