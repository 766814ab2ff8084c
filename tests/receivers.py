"""A program that webhooks are delivered to, with switches for its troubles."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any, Self

import msgspec
from aiohttp import web

WAIT_SECONDS = 30.0


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came."""

    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def is_signed_with(self, secret: str) -> bool:
        """Check the signature as the description of Standard Webhooks says."""
        key = base64.b64decode(secret.split("_", 1)[1])
        signed = b".".join(
            [self.id.encode(), self.headers["webhook-timestamp"].encode(), self.body]
        )
        expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return f"v1,{expected}" in self.headers["webhook-signature"].split(" ")


class Receiver:
    """Answers 200, or what `answer` says of a request; remembers everything that came."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.taken: list[Received] = []
        self.answer: Callable[[Received], int] = lambda _: 200
        self.location = ""
        self.retry_after = ""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer_bytes = b""
        self._came = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/hook"

    @property
    def port(self) -> int:
        return self._port

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def events(self) -> list[int]:
        """Return the numbers of the events that were taken, in the order they came."""
        bodies = [one.json() for one in self.taken]
        return [one["data"]["seq"] for one in bodies if one["type"] == "conversation.event"]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Return what was told in messages of a type."""
        bodies = [one.json() for one in self.taken]
        return [one["data"] for one in bodies if one["type"] == kind]

    async def wait_for(self, is_enough: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while True:
                    if is_enough():
                        return
                    self._came.clear()
                    await self._came.wait()
        except TimeoutError:
            seen = [one.body[:200] for one in self.received]
            raise AssertionError(f"only this was received: {seen}") from None

    async def _take(self, request: web.Request) -> web.Response:
        one = Received(headers=dict(request.headers), body=await request.read())
        self.received.append(one)
        self._came.set()
        await self.may_answer.wait()
        status = self.answer(one)
        if status == 200:
            self.taken.append(one)
        self._came.set()
        said = {"Location": self.location, "Retry-After": self.retry_after}
        headers = {name: value for name, value in said.items() if value}
        return web.Response(status=status, headers=headers, body=self.answer_bytes)
