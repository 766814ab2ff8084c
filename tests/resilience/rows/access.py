"""Nothing is open by default: every operation, with every kind of key that must not open it.

Over HTTP, over WebSockets, over the event socket, and through the gateway to a sandbox.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

import aiohttp
import msgspec
import socketio

from agentsvc.app import published_routes
from agentsvc.base.values import now, to_stored
from agentsvc.config.schema import Config
from agentsvc.http.routes import OF_USERS, Scope
from tests.description import Operation, description_of, example_body, example_path
from tests.http.gateway.steps import until
from tests.resilience.book import Figure, Ground, Half, Outcome, Row, zero
from tests.resilience.server import Server, serving
from tests.service import Answer

_CONFIG: Final = Config(
    extensions={
        name: {"enabled": True}
        for name in ("runtime_api", "sharing", "mcp_server", "sign_in", "acp_agent")
    }
)
OPERATIONS: Final = list(description_of(published_routes(_CONFIG)).operations())

_NOBODY: Final = frozenset({401})
_NOT_THEIRS: Final = frozenset({403})
_SAID: Final = {401: "not_authenticated", 403: "not_allowed"}
_CHANGING: Final = (Scope.RUN, Scope.MANAGE, Scope.ADMIN)
_MANAGING: Final = (Scope.MANAGE, Scope.ADMIN)
_ADMIN: Final = (Scope.ADMIN, Scope.ADMIN_READ)
_OF_SANDBOXES: Final = (Scope.SANDBOX, Scope.PASS)

OPEN: Final = frozenset(
    {
        "/alive",
        "/health",
        "/ready",
        "/server_info",
        "/api/v1/web-client/config",
        "/api/v1/logins",
        "/api/v1/logins/link",
        "/api/v1/logins/providers",
        "/api/v1/sign-in",
        "/api/v1/sign-in/attempts",
        "/api/v1/sign-in/proxy",
        "/api/v1/sign-in/{login_provider}/logout",
        "/api/automation/v1/events/{automation_id}",
        "/docs",
        "/docs/icon.svg",
        "/docs/viewer.css",
        "/docs/viewer.js",
        "/oauth/device/authorize",
        "/oauth/device/token",
        "/oauth/device/verify",
        "/oauth/device/verify.css",
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/api/shared-conversations",
        "/api/shared-events",
        "/api/shared-events/count",
        "/api/shared-events/search",
        "/api/shared-events/{conversation_id}/{event_id}",
        "/shared/conversations/{share_id}",
    }
)
"""What answers without a key, and nothing else may."""


_OF_A_SANDBOX: Final = "of a sandbox"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of caller, and which scopes are closed to it, with which status."""

    name: str
    value: str | None
    closed: Mapping[Scope, frozenset[int]]


def _closed(
    *parts: tuple[tuple[Scope, ...] | frozenset[Scope], frozenset[int]],
) -> dict[Scope, Any]:
    return {scope: statuses for scopes, statuses in parts for scope in scopes}


_ALL: Final = _closed((OF_USERS, _NOBODY), (_OF_SANDBOXES, _NOBODY))


async def make_keys(server: Server) -> list[Key]:
    """Return callers of every kind; what they are closed to follows from what they are."""
    admin = server.client
    soon = {"name": "soon", "expires_at": to_stored(now() + timedelta(seconds=1))}
    expired = (await admin.post("/api/keys", json=soon)).json()["key"]
    revoked = (await admin.post("/api/keys", json={"name": "revoked"})).json()
    await admin.delete(f"/api/keys/{revoked['id']}")
    member = await server.add_user("member")
    viewer = await server.add_user("viewer", role="viewer")
    reader = await server.add_user("reader", role="admin", scope="read")
    runner = await server.add_user("runner", role="admin", scope="run")
    blocked = await server.add_user("blocked")
    users = {one["name"]: one["id"] for one in (await admin.get("/api/v1/users")).json()}
    await admin.patch(f"/api/v1/users/{users['blocked']}", json={"is_blocked": True})
    sandbox = (await admin.post("/api/v1/sandboxes")).json()
    await admin.wait_for_sandbox(sandbox["id"], "RUNNING")
    found: Any = await admin.sandbox(sandbox["id"])

    async def is_over() -> bool:
        key = server.client_with(expired)
        return (await key.get("/api/keys/current")).status == 401

    await until(is_over)
    closed_to_all = (_OF_SANDBOXES, _NOBODY)
    return [
        Key(name="none", value=None, closed=_ALL),
        Key(name="bad", value="asvc_" + "x" * 43, closed=_ALL),
        Key(name="expired", value=expired, closed=_ALL),
        Key(name="revoked", value=revoked["key"], closed=_ALL),
        Key(
            name="of a blocked user",
            value=blocked.key,
            closed=_closed((OF_USERS, _NOBODY | _NOT_THEIRS), closed_to_all),
        ),
        Key(
            name=_OF_A_SANDBOX, value=found["session_api_key"], closed=_closed((OF_USERS, _NOBODY))
        ),
        Key(name="member", value=member.key, closed=_closed((_ADMIN, _NOT_THEIRS), closed_to_all)),
        Key(
            name="viewer",
            value=viewer.key,
            closed=_closed(((*_CHANGING, *_ADMIN), _NOT_THEIRS), closed_to_all),
        ),
        Key(name="read", value=reader.key, closed=_closed((_CHANGING, _NOT_THEIRS), closed_to_all)),
        Key(name="run", value=runner.key, closed=_closed((_MANAGING, _NOT_THEIRS), closed_to_all)),
    ]


class Matrix:
    """Every operation with every key that must not open it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.tried: dict[str, int] = {}
        self.opened: list[str] = []
        self.to_own_agent = 0
        """Requests with a sandbox's key for paths that are of its own agent server, too."""

    async def over_http(self, key: Key) -> None:
        client = self._server.client_with(key.value)
        for operation in OPERATIONS:
            statuses = key.closed.get(operation.route.scope)
            if statuses is None or _is_own_end(operation):
                continue
            for options in example_body(operation, {}):
                passed_on = self._passed_on()
                answer = await client.request(
                    operation.method.upper(),
                    example_path(operation, {}),
                    allow_redirects=False,
                    **options,
                )
                if key.name != _OF_A_SANDBOX or self._passed_on() == passed_on:
                    self._note("HTTP", f"{operation.name} with {key.name}", answer, statuses)
                else:
                    self.to_own_agent += 1

    async def over_sockets(self, key: Key) -> None:
        """Knock at each stream as a WebSocket, with the key in the header, the query and late."""
        statuses = key.closed.get(Scope.READ)
        if statuses is None:
            return
        for operation in OPERATIONS:
            if operation.route.takes_query_key:
                path = example_path(operation, {}).partition("?")[0]
                for way in (_in_header, _in_query, _late):
                    is_open = await way(self._server.url + path, key.value)
                    self._count("WebSocket", f"{operation.name} with {key.name}", is_open=is_open)

    async def over_socketio(self, key: Key, conversation_id: str) -> None:
        if Scope.READ in key.closed:
            for way in (_socketio_query, _socketio_header):
                is_open = await way(self._server.url, key.value, conversation_id)
                self._count("Socket.IO", key.name, is_open=is_open)

    async def through_gateway(self, key: Key, sandbox_id: str) -> None:
        """Ask for a port of another user's sandbox, and over a WebSocket."""
        if key.name == _OF_A_SANDBOX:
            return
        client = self._server.client_with(key.value)
        base = f"/sandboxes/{sandbox_id}/agent"
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            # The signs of life of an agent server need no key: `/alive`, `/health`, `/ready`.
            for tail in ("/", "/api/conversations", "/server_info", "/sockets/events/1"):
                answer = await client.request(method, base + tail)
                refusals = frozenset({401, 403, 404})
                self._note("gateway", f"{method} {tail} with {key.name}", answer, refusals)
        is_open = await _in_header(f"{self._server.url}{base}/sockets/events/1", key.value)
        self._count("gateway", f"socket with {key.name}", is_open=is_open)

    def _passed_on(self) -> int:
        """Return how many requests have come to agent servers."""
        return sum(len(one.requests) for one in self._server.place.agent.sandboxes.values())

    def _note(self, over: str, what: str, answer: Answer, statuses: frozenset[int]) -> None:
        is_refused = answer.status in statuses
        if is_refused and answer.status in _SAID:
            is_refused = _SAID[answer.status] in answer.text
        self._count(over, f"{what}: {answer.status}", is_open=not is_refused)

    def _count(self, over: str, what: str, *, is_open: bool) -> None:
        self.tried[over] = self.tried.get(over, 0) + 1
        if is_open:
            self.opened.append(f"{over}: {what}")


def _is_own_end(operation: Operation) -> bool:
    """Whether it ends nothing but the login that asks for it, which each key may."""
    return operation.name == "delete /api/v1/logins/current"


async def _in_header(url: str, key: str | None) -> bool:
    return await _knock(url, {"X-Session-API-Key": key} if key else {}, "")


async def _in_query(url: str, key: str | None) -> bool:
    return await _knock(f"{url}?session_api_key={key or ''}", {}, "")


async def _late(url: str, key: str | None) -> bool:
    first = msgspec.json.encode({"type": "auth", "session_api_key": key or ""}).decode()
    return await _knock(url, {}, first)


async def _knock(url: str, headers: dict[str, str], first: str) -> bool:
    """Say whether a WebSocket tells anything but that it is closed."""
    try:
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=5)) as socket,
        ):
            if first:
                await socket.send_str(first)
            said = await socket.receive(timeout=30)
            return said.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
    except aiohttp.WSServerHandshakeError:
        return False


async def _socketio_query(url: str, key: str | None, conversation_id: str) -> bool:
    return await _join(f"{url}?conversation_id={conversation_id}&session_api_key={key or ''}", {})


async def _socketio_header(url: str, key: str | None, conversation_id: str) -> bool:
    headers = {"X-Session-API-Key": key} if key else {}
    return await _join(f"{url}?conversation_id={conversation_id}", headers)


async def _join(url: str, headers: dict[str, str]) -> bool:
    """Say whether the event socket tells an event, or lets anybody in for longer than a moment."""
    client = socketio.AsyncClient(reconnection=False)
    told = asyncio.Event()
    client.on("oh_event", lambda *_: told.set())
    try:
        await client.connect(url, headers=headers, wait_timeout=30)
        async with asyncio.timeout(1):
            await told.wait()
    except (socketio.exceptions.ConnectionError, TimeoutError):
        return False
    finally:
        await client.disconnect()
    return True


def unexpected_open() -> Iterator[str]:
    """Yield operations that say they are open and are not on the list of those."""
    for operation in OPERATIONS:
        if operation.route.scope is Scope.OPEN and operation.path not in OPEN:
            yield operation.name


async def run(ground: Ground) -> Outcome:
    async with serving(ground.place("server")) as server:
        await server.client.save_settings()
        owner = await server.add_user("owner")
        await owner.save_settings()
        conversation_id = await owner.start_conversation(None)
        sandbox_id = (await owner.conversation(conversation_id))["sandbox_id"]
        keys = await make_keys(server)
        matrix = Matrix(server)
        chosen = (
            keys if ground.scale >= 1 else ground.chance.sample(keys, ground.count(10, least=2))
        )
        for key in chosen:
            works: list[Callable[[], Awaitable[None]]] = [
                lambda key=key: matrix.over_http(key),  # type: ignore[misc]  # the key of now
                lambda key=key: matrix.over_sockets(key),  # type: ignore[misc]  # the key of now
                lambda key=key: matrix.over_socketio(key, conversation_id),  # type: ignore[misc]  # the key of now
                lambda key=key: matrix.through_gateway(key, sandbox_id),  # type: ignore[misc]  # the key of now
            ]
            for work in works:
                await work()
    tried = ", ".join(f"{count} over {over}" for over, count in matrix.tried.items())
    wrong = [*matrix.opened, *unexpected_open()]
    return Outcome(
        did=(
            f"{len(OPERATIONS)} operations with {len(chosen)} of the keys none, bad, expired,"
            f" revoked, blocked, of a sandbox, member, viewer, read and run: {tried};"
            f" {matrix.to_own_agent} with a sandbox's key went to its own agent server only"
        ),
        figures=(
            Figure(what="attempts", value=sum(matrix.tried.values()), at_least=1),
            zero("that were not refused as declared", wrong),
        ),
        problems=tuple(wrong),
    )


ROW: Final = Row(name="access", half=Half.IN, promise="nothing open by default", run=run)
