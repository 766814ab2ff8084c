"""Where the sandboxes of a server under test are: in the resilience tests's own process, which outlives it.

The server has `place_backend` as a plugin, which asks here for whatever a backend does. The sandboxes
are those of a FakeWorld, and a FakeAgent serves in all of them.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base.errors import AgentsvcError
from agentsvc.base.values import Secret
from agentsvc.plugin.backend import Fences, Handle, Isolation, Order
from agentsvc.testing.backend import FakeBackend, FakeWorld
from agentsvc.testing.llm import Script
from tests.fake_agent import FakeAgent

PLUGIN: Final = Path(__file__).parent / "place_backend.py"
"""What a server that is tried has in its directory of plugins."""


class Place:
    """A FakeWorld that a server in another process can reach."""

    def __init__(self, agent: FakeAgent) -> None:
        self.world = FakeWorld()
        self.agent = agent
        self.world.on_create = agent.on_create
        self.world.isolation = Isolation.VM
        self.world.fences = Fences(isolation=Isolation.VM)
        self.url = ""
        self.creates: dict[str, int] = {}
        """How often each sandbox was ordered."""
        self.on_call: Callable[[str, str], Awaitable[None]] | None = None
        """Is told of each call before it is done: its method and the sandbox."""
        self._backends: dict[str, FakeBackend] = {}

    async def serve(self) -> web.AppRunner:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_post("/{instance_id}/{method}", self._call)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _call(self, request: web.Request) -> web.Response:
        instance_id, method = (request.match_info[name] for name in ("instance_id", "method"))
        if instance_id not in self._backends:
            self._backends[instance_id] = self.world.backend(instance_id)
        body = msgspec.json.decode(await request.read())
        sandbox_id = str((body.get("order") or body.get("handle") or {}).get("sandbox_id", ""))
        try:
            if self.on_call is not None:
                await self.on_call(method, sandbox_id)
            answer = await self._do(self._backends[instance_id], method, body)
        except AgentsvcError as exc:
            told = {"error": type(exc).__name__, "message": exc.message}
            return web.Response(body=msgspec.json.encode(told), status=418)
        return web.Response(body=answer, content_type="application/json")

    async def _do(self, backend: FakeBackend, method: str, body: dict[str, Any]) -> bytes:
        arguments: list[Any] = []
        if "order" in body:
            order = msgspec.convert(body["order"], Order, dec_hook=_to_secret)
            self.creates[order.sandbox_id] = self.creates.get(order.sandbox_id, 0) + 1
            arguments.append(order)
        if "handle" in body:
            arguments.append(msgspec.convert(body["handle"], Handle))
        if method in ("create", "restart"):
            arguments.append(_forget)
        return msgspec.json.encode(await getattr(backend, method)(*arguments))


async def _forget(_handle: Handle) -> None:
    """Save nothing: the plugin does, in the server."""


def _to_secret(kind: type, text: Any) -> Any:
    assert kind is Secret
    return Secret(text)


@asynccontextmanager
async def open_place(
    scripts: dict[str, Script] | None = None, agent: FakeAgent | None = None
) -> AsyncIterator[Place]:
    """Give a place with an agent; both end with it."""
    async with agent or FakeAgent(scripts=scripts) as opened:
        place = Place(opened)
        runner = await place.serve()
        try:
            yield place
        finally:
            await runner.cleanup()
            place.world.close()
