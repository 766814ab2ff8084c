"""A fake world with a switch for trouble at each single call, and waiting for what follows."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, ClassVar

import msgspec
from aiohttp import web

from agentsvc.base.values import now
from agentsvc.config.conversations import ConversationsConfig
from agentsvc.config.sandboxes import SandboxesConfig
from agentsvc.plugin.backend import Capability, Found, Handle, LogLine, Order, Report, SaveHandle
from agentsvc.testing.backend import FakeBackend, FakeWorld
from tests.fake_agent import BODY, FakeAgent
from tests.fake_conversation import FakeConversation
from tests.service import WAIT_SECONDS, Service


class TroubledWorld(FakeWorld):
    """A FakeWorld whose backends have trouble as they are told.

    The methods are those of the backend, and `save` for the moment before a handle is saved and
    `created` for the one after a sandbox is made and its handle saved.
    """

    def __init__(self) -> None:
        super().__init__()
        self.next: defaultdict[str, list[Exception]] = defaultdict(list)
        """Raised by the next calls of a method, one each."""
        self.always: dict[str, Exception] = {}
        """Raised by every call of a method."""
        self.held: dict[str, asyncio.Event] = {}
        """Calls of a method wait until this is set."""
        self.waiting: set[str] = set()
        """The methods whose calls have come to wait."""
        self.hides_working_dir = False
        """Reports do not say where a sandbox works."""
        self.capabilities: frozenset[Capability] = FakeBackend.capabilities

    def backend_type(self) -> type[FakeBackend]:
        members = {
            "world": self,
            "capabilities": self.capabilities,
            "default_isolation": self.default_isolation,
        }
        return type("FakeBackend", (TroubledBackend,), members)

    def hold(self, method: str) -> asyncio.Event:
        """Let calls of a method wait from now on; returns what lets them go."""
        self.held[method] = asyncio.Event()
        return self.held[method]

    def count(self, method: str) -> int:
        """Return how often a method was called."""
        return sum(1 for called, _ in self.calls if called == method)

    def write_log(self, sandbox_id: str, text: str) -> None:
        """Let a sandbox have written a line."""
        self.sandboxes[sandbox_id].log.append(LogLine(at=now(), stream="stderr", text=text))

    async def trouble(self, method: str) -> None:
        """Have the trouble that was ordered for a method."""
        if method in self.held:
            self.waiting.add(method)
            await self.held[method].wait()
        if self.next[method]:
            raise self.next[method].pop(0)
        if method in self.always:
            raise self.always[method]

    async def waits(self, method: str) -> None:
        """Wait until a call of the method has come to wait."""
        await eventually(lambda: method in self.waiting)

    async def sweeps(self, times: int) -> None:
        """Wait until all sandboxes were looked at so many times more."""
        end = self.count("scan") + times
        await eventually(lambda: self.count("scan") >= end)


class TroubledBackend(FakeBackend):
    """A FakeBackend that has the troubles of its world."""

    world: ClassVar[TroubledWorld]

    async def open(self) -> None:
        await self.world.trouble("open")
        await super().open()

    async def create(self, order: Order, save: SaveHandle) -> Handle:
        async def save_later(handle: Handle) -> None:
            await self.world.trouble("save")
            await save(handle)

        await self.world.trouble("create")
        handle = await super().create(order, save_later)
        await self.world.trouble("created")
        return handle

    async def inspect(self, handle: Handle) -> Report:
        await self.world.trouble("inspect")
        report = await super().inspect(handle)
        if self.world.hides_working_dir:
            return msgspec.structs.replace(report, working_dir="")
        return report

    async def scan(self) -> Sequence[Found]:
        found = await super().scan()
        await self.world.trouble("scan")
        return found

    async def delete(self, handle: Handle) -> None:
        await self.world.trouble("delete")
        await super().delete(handle)

    async def layers(self) -> Sequence[str]:
        await self.world.trouble("layers")
        return await super().layers()

    async def give_way(self, handles: Sequence[Handle]) -> None:
        await super().give_way(handles)
        await self.world.trouble("give_way")

    async def pause(self, handle: Handle) -> None:
        await self.world.trouble("pause")
        await super().pause(handle)

    async def roll_back(self, handle: Handle, checkpoint_id: str) -> None:
        await self.world.trouble("roll_back")
        await super().roll_back(handle, checkpoint_id)

    async def stop(self, handle: Handle) -> None:
        await self.world.trouble("stop")
        await super().stop(handle)

    async def resume(self, handle: Handle) -> Handle:
        await self.world.trouble("resume")
        return await super().resume(handle)

    async def restart(self, order: Order, handle: Handle, save: SaveHandle) -> Handle:
        await self.world.trouble("restart")
        return await super().restart(order, handle, save)

    async def logs(self, handle: Handle, *, tail: int, follow: bool) -> AsyncIterator[LogLine]:
        await self.world.trouble("logs")
        async for line in super().logs(handle, tail=tail, follow=follow):
            yield line


async def eventually(is_so: Callable[[], bool], *, time_limit: float = WAIT_SECONDS) -> None:
    """Wait until something is so; fails at the time limit."""
    async with asyncio.timeout(time_limit):
        while not is_so():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.01)


async def reconfigure(
    service: Service,
    *,
    sandboxes: dict[str, Any] | None = None,
    conversations: dict[str, Any] | None = None,
) -> None:
    """Start the service again with other values for these keys."""
    old = service.config
    new_sandboxes: SandboxesConfig = msgspec.structs.replace(old.sandboxes, **(sandboxes or {}))
    new_conversations: ConversationsConfig = msgspec.structs.replace(
        old.conversations, **(conversations or {})
    )
    service.config = msgspec.structs.replace(
        old, sandboxes=new_sandboxes, conversations=new_conversations
    )
    await service.restart()


class TroubledAgent(FakeAgent):
    """A FakeAgent that holds requests up and has the troubles it is told to have.

    The names of requests are `alive`, `command`, `hooks`, `conversation`, `info`, `secrets`,
    `confirmation` and `interrupt`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held: dict[str, asyncio.Event] = {}
        """Requests of a name wait until this is set."""
        self.held_commands: dict[str, asyncio.Event] = {}
        """Commands with this text in them wait until this is set."""
        self.waiting: set[str] = set()
        """The names and texts whose requests have come to wait."""
        self.refusals: list[tuple[int, str]] = []
        """Status and detail for the next requests to start a conversation."""
        self.interrupt_refusals: list[int] = []
        """Statuses for the next interrupts, which then do nothing."""
        self.forgets_next = False
        """The next conversation is lost as soon as it was started."""
        self.loses_message = False
        """The next conversation is kept without its first message, and nobody hears of it."""
        self.is_born_down = False
        """The agent servers of new sandboxes do not answer."""

    def hold(self, name: str, *, is_command: bool = False) -> asyncio.Event:
        """Let requests of a name, or commands with a text, wait; returns what lets them go."""
        held = self.held_commands if is_command else self.held
        held[name] = asyncio.Event()
        return held[name]

    def let_go(self) -> None:
        """Hold nothing up any more."""
        for held in (self.held, self.held_commands):
            for event in held.values():
                event.set()
            held.clear()
        self.waiting.clear()

    async def waits(self, name: str) -> None:
        """Wait until a request has come to wait."""
        await eventually(lambda: name in self.waiting)

    def count(self, request: str) -> int:
        """Return how often any of its sandboxes was sent requests that end so."""
        sent = [one for sandbox in self.sandboxes.values() for one in sandbox.requests]
        return sum(1 for one in sent if one.endswith(request))

    def conversation_of(self, conversation_id: str) -> FakeConversation:
        """Return a conversation it has."""
        found = self.find_conversation(conversation_id)
        assert found is not None
        return found

    def started(self) -> int:
        """Return how often it was asked to start a conversation."""
        wanted = "POST /api/conversations"
        return sum(sandbox.requests.count(wanted) for sandbox in self.sandboxes.values())

    def on_create(self, order: Order) -> dict[str, str]:
        urls = super().on_create(order)
        if self.is_born_down:
            self.sandboxes[order.sandbox_id].is_down = True
        return urls

    async def get_alive(self, request: web.Request) -> web.Response:
        await self._wait("alive", self.held.get("alive"))
        return await super().get_alive(request)

    async def post_command(self, request: web.Request) -> web.Response:
        command = (await request.json())["command"]
        for text, held in list(self.held_commands.items()):
            if text in command:
                await self._wait(text, held)
        return await super().post_command(request)

    async def post_hooks(self, request: web.Request) -> web.Response:
        await self._wait("hooks", self.held.get("hooks"))
        return await super().post_hooks(request)

    async def post_conversation(self, request: web.Request) -> web.Response:
        await self._wait("conversation", self.held.get("conversation"))
        if self.refusals:
            status, detail = self.refusals.pop(0)
            return web.json_response({"detail": detail}, status=status)
        if self.loses_message:
            request[BODY].pop("initial_message")
        answer = await super().post_conversation(request)
        if self.loses_message:
            self.loses_message = False
            return web.json_response({"detail": "it ended"}, status=503)
        if self.forgets_next:
            self.forgets_next = False
            for sandbox in self.sandboxes.values():
                sandbox.conversations.clear()
        return answer

    async def get_conversation(self, request: web.Request) -> web.Response:
        await self._wait("info", self.held.get("info"))
        return await super().get_conversation(request)

    async def post_secrets(self, request: web.Request) -> web.Response:
        await self._wait("secrets", self.held.get("secrets"))
        return await super().post_secrets(request)

    async def post_confirmation(self, request: web.Request) -> web.Response:
        await self._wait("confirmation", self.held.get("confirmation"))
        return await super().post_confirmation(request)

    async def post_interrupt(self, request: web.Request) -> web.Response:
        await self._wait("interrupt", self.held.get("interrupt"))
        if self.interrupt_refusals:
            return web.json_response({"detail": "no"}, status=self.interrupt_refusals.pop(0))
        return await super().post_interrupt(request)

    async def _wait(self, name: str, held: asyncio.Event | None) -> None:
        if held is not None:
            self.waiting.add(name)
            await held.wait()
