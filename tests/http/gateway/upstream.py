"""A real server that stands for what runs in a sandbox, with switches and a memory."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
from aiohttp import WSMsgType, web

from agentsvc.plugin.backend import Order

DATA = bytes(range(256)) * 4


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A request as it arrived in the sandbox."""

    method: str
    raw_path: str
    headers: list[tuple[str, str]]
    body: bytes

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def one(self, name: str) -> str | None:
        found = self.all(name)
        assert len(found) < 2, found
        return found[0] if found else None


class Upstream:
    """Serves on a free port of loopback; every sandbox that is ordered has it on every port."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.keys: dict[str, str] = {}
        self.answer_headers: list[tuple[str, str]] = []
        self.steps: asyncio.Queue[bytes] = asyncio.Queue()
        """What the stream sends next; an empty part ends it."""
        self.raw_answer = b""
        """What `/raw` sends before it hangs up."""
        self.page = ""
        """The page at `/page`."""
        self.answers: dict[str, bytes] = {}
        """The JSON that some paths answer with."""
        self.received = 0
        self.sockets: list[web.WebSocketResponse] = []
        self.socket_ends: asyncio.Queue[int | None] = asyncio.Queue()
        self.lost = asyncio.Event()
        """Set when a stream's client has gone."""
        self.stopped = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._transports: set[asyncio.Transport] = set()
        self.url = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 40, middlewares=[self._keep_transport])
        app.router.add_get("/data", self.get_data)
        app.router.add_get("/stream", self.get_stream)
        app.router.add_route("*", "/sink", self.post_sink)
        app.router.add_route("*", "/hang", self.get_hang)
        app.router.add_route("*", "/hasty", self.post_hasty)
        app.router.add_post("/duplex", self.post_duplex)
        app.router.add_post("/picky", self.post_picky, expect_handler=_refuse_body)
        app.router.add_get("/broken", self.get_broken)
        app.router.add_get("/raw", self.get_raw)
        app.router.add_get("/big", self.get_big)
        app.router.add_get("/ws", self.get_socket)
        app.router.add_get("/flood", self.get_flood)
        app.router.add_get("/deaf", self.get_deaf_socket)
        app.router.add_get("/page", self.get_page)
        app.router.add_get("/sockets/events/{id}", self.get_socket)
        app.router.add_get("/sockets/refused", self.get_no_socket)
        app.router.add_get("/no-ws", self.get_no_socket)
        app.router.add_route("*", "/{path:.*}", self.echo)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        self.stopped.set()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        # What nobody has read would be waited for as long as there is a connection.
        for transport in self._transports:
            transport.abort()
        self._transports.clear()
        await asyncio.sleep(0)

    def on_create(self, order: Order) -> dict[str, str]:
        self.keys[order.sandbox_id] = order.secret_env["OH_SESSION_API_KEYS_0"].reveal()
        return {port.name: self.url for port in order.ports}

    async def echo(self, request: web.Request) -> web.Response:
        self._note(request, await request.read())
        if request.path in self.answers:
            return web.Response(body=self.answers[request.path], content_type="application/json")
        return web.json_response({"ok": True}, headers=self.answer_headers)

    async def get_data(self, request: web.Request) -> web.Response:
        self._note(request)
        wanted = request.http_range
        if wanted.start is None:
            return web.Response(body=DATA, headers={"Accept-Ranges": "bytes", "ETag": '"1"'})
        part = DATA[wanted]
        start = wanted.start
        content_range = f"bytes {start}-{start + len(part) - 1}/{len(DATA)}"
        return web.Response(status=206, body=part, headers={"Content-Range": content_range})

    async def get_stream(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        media_type = request.query.get("type", "text/event-stream")
        response = web.StreamResponse(headers={"Content-Type": media_type})
        await response.prepare(request)
        try:
            while part := await self.steps.get():
                await response.write(part)
                if request.transport is None or request.transport.is_closing():
                    break
        except ConnectionError:
            self.lost.set()
            raise
        self.lost.set()
        return response

    async def post_sink(self, request: web.Request) -> web.Response:
        self._note(request)
        self.received = 0
        async for chunk in request.content.iter_any():
            self.received += len(chunk)
        return web.json_response({"received": self.received})

    async def post_duplex(self, request: web.Request) -> web.StreamResponse:
        """Answer each part of the body as it comes."""
        self._note(request)
        response = web.StreamResponse()
        await response.prepare(request)
        async for chunk in request.content.iter_any():
            await response.write(chunk.upper())
        return response

    async def get_hang(self, request: web.Request) -> web.Response:
        """Answer when the client has gone, if it goes."""
        self._note(request)
        while request.transport is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await self.stopped.wait()
            if self.stopped.is_set():
                break
        self.lost.set()
        return web.Response()

    async def post_hasty(self, request: web.Request) -> web.Response:
        """Answer without waiting for the body."""
        self._note(request)
        return web.Response(status=409, text="enough")

    async def post_picky(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(status=413, text="too much for me")

    async def get_broken(self, request: web.Request) -> web.StreamResponse:
        self._note(request)
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"begun")
        assert request.transport is not None
        request.transport.close()
        return response

    async def get_raw(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.write(self.raw_answer)
        request.transport.close()
        return web.Response()

    async def get_big(self, request: web.Request) -> web.StreamResponse:
        size = int(request.query["bytes"])
        response = web.StreamResponse(headers={"Content-Length": str(size)})
        await response.prepare(request)
        part = bytes(64 * 1024)
        for _ in range(size // len(part)):
            await response.write(part)
            self.received += len(part)
        return response

    async def get_socket(self, request: web.Request) -> web.WebSocketResponse:
        """Echo messages; a few words have a meaning."""
        self._note(request)
        socket = web.WebSocketResponse(protocols=("chat",), autoping=False, max_msg_size=0)
        await socket.prepare(request)
        self.sockets.append(socket)
        await socket.send_str("hello")
        async for message in socket:
            await _reply(socket, message)
        self.socket_ends.put_nowait(socket.close_code)
        return socket

    async def get_flood(self, request: web.Request) -> web.WebSocketResponse:
        """Send as much as the client takes."""
        socket = web.WebSocketResponse(compress=False)
        await socket.prepare(request)
        try:
            while True:
                await socket.send_bytes(bytes(64 * 1024))
                self.received += 64 * 1024
        except ConnectionError:
            self.lost.set()
        return socket

    async def get_deaf_socket(self, request: web.Request) -> web.WebSocketResponse:
        """Open a WebSocket and read nothing from it."""
        self._note(request)
        socket = web.WebSocketResponse(compress=False, max_msg_size=0)
        await socket.prepare(request)
        await self.stopped.wait()
        return socket

    async def get_page(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(text=self.page, content_type="text/html")

    async def get_no_socket(self, request: web.Request) -> web.Response:
        self._note(request)
        return web.Response(status=403, text="not for you", headers={"X-Why": "because"})

    @web.middleware
    async def _keep_transport(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        return await handler(request)

    def _note(self, request: web.Request, body: bytes = b"") -> None:
        self.seen.append(
            Seen(
                method=request.method,
                raw_path=request.raw_path,
                headers=list(request.headers.items()),
                body=body,
            )
        )


async def _reply(socket: web.WebSocketResponse, message: aiohttp.WSMessage) -> None:
    match message.type:
        case WSMsgType.TEXT if message.data.startswith("close "):
            _, code, reason = message.data.split(" ", 2)
            await socket.close(code=int(code), message=reason.encode())
        case WSMsgType.TEXT if message.data == "ping me":
            await socket.ping(b"from the sandbox")
        case WSMsgType.TEXT:
            await socket.send_str(message.data.upper())
        case WSMsgType.BINARY:
            await socket.send_bytes(message.data[::-1])
        case WSMsgType.PING:
            await socket.pong(message.data)
        case WSMsgType.PONG:
            await socket.send_str(f"ponged {message.data.decode()}")
        case _:
            pass


async def _refuse_body(request: web.Request) -> Any:
    """Send no 100: the answer is final."""
    del request
