"""Types and handlers of the remote runtime API."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import (
    BadRequest,
    NotFound,
    OrderRejected,
    SandboxLimitReached,
    Secret,
    ShownSecret,
    StartFailed,
    to_stored,
)
from agentsvc.extension.server import (
    ClientOrder,
    Conversations,
    Extension,
    Sandbox,
    Sandboxes,
    SandboxStatus,
    Server,
)
from agentsvc.extension.web import (
    EXAMPLE_ID,
    OF_SANDBOXES,
    PRINCIPAL,
    ClientId,
    EnvName,
    EnvValue,
    Routes,
    Time,
    links_of,
    mount_short_paths,
)
from agentsvc.plugin import Isolation, Spec

from .config import RuntimeApiConfig

IDS_MAX: Final = 100

type Factor = Annotated[int, Meta(ge=1, le=64)]
type Text = Annotated[str, Meta(max_length=1024)]


class RuntimeStatus(StrEnum):
    """The status of a runtime."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    STARTING = "starting"
    ERROR = "error"


class PodStatus(StrEnum):
    """The status of a runtime's pod, in the terms of the service that defined this API."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    NOT_FOUND = "not found"


class RuntimeStart(msgspec.Struct, frozen=True, kw_only=True):
    """The order of a runtime. The image selects a spec, and the spec sets command and limits.

    Command, directory, users and class of the runtime are accepted and ignored.
    """

    image: Text
    """Image or id of a spec; if no spec has it, the spec in `runtime_api.spec` is used"""
    session_id: ClientId
    """The caller's name for the sandbox: a start with the same one returns the existing runtime;
    any but `batch`"""
    environment: Annotated[dict[EnvName, EnvValue], Meta(max_length=500)] = {}
    """Environment variables by name, beside those of the spec"""
    resource_factor: Factor = 1
    """Factor for the limits of the spec, as far as the server allows"""
    command: Text | Annotated[list[Text], Meta(max_length=100)] | None = None
    """Ignored: the spec decides; null: not set"""
    working_dir: Text | None = None
    """Ignored: the spec decides; null: not set"""
    runtime_class: Text | None = None
    """Ignored: the spec decides; null: not set"""


class RuntimeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime of an action."""

    runtime_id: Annotated[str, Meta(min_length=1, max_length=128)]
    """Id of the runtime, as returned by a start"""


class SessionIds(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a batch get."""

    ids: list[str] = []
    """At most 100 session ids; unknown ones are omitted from the response"""


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime. The fields after `restart_reasons` are this server's own.

    `ports_need_key` means that requests to `url` and `port_urls` need the session key in
    X-Session-API-Key, which is removed from the forwarded request.
    """

    runtime_id: str
    """Id of the runtime, which is that of a sandbox"""
    session_id: str
    """The caller's name for it"""
    session_api_key: ShownSecret
    """Key of its agent server, sent as `X-Session-API-Key`; empty if it has none"""
    url: str
    """URL of its agent server, through this server"""
    status: RuntimeStatus
    """Its status"""
    pod_status: PodStatus
    """Status of its pod"""
    work_hosts: dict[str, int]
    """Always empty: see `port_urls`"""
    image: str
    """Image of its spec, or the id of a spec without one"""
    restart_count: int
    """Always 0: failed runtimes are not restarted"""
    restart_reasons: list[str]
    """Always empty"""
    created_at: Time
    working_dir: str | None
    """Working directory of its command, as a path inside; null until it is known"""
    exit_code: int | None
    """Exit code of its command; null while it runs, and after a signal"""
    detail: str | None
    """Reason for its status, for people; null if there is none"""
    isolation: Isolation | None
    """How it is isolated; null until that is known"""
    ports_need_key: bool
    """Always true: requests to `url` and `port_urls` need the session key in `X-Session-API-Key`,
    which is not forwarded to the program behind it"""
    port_urls: dict[str, str]
    """URL of each of its ports, by the name of the port"""


class RuntimeList(msgspec.Struct, frozen=True, kw_only=True):
    """The runtimes that run or are starting."""

    runtimes: list[Runtime]
    """The runtimes"""


class RuntimeDone(msgspec.Struct, frozen=True, kw_only=True):
    """The response of a successful action."""

    status: str = "ok"
    """Always `ok`"""


DONE: Final = RuntimeDone()

_STATUSES: Final[Mapping[SandboxStatus, tuple[RuntimeStatus, PodStatus]]] = {
    SandboxStatus.STARTING: (RuntimeStatus.STARTING, PodStatus.PENDING),
    SandboxStatus.RUNNING: (RuntimeStatus.RUNNING, PodStatus.READY),
    SandboxStatus.PAUSED: (RuntimeStatus.PAUSED, PodStatus.NOT_FOUND),
    SandboxStatus.ERROR: (RuntimeStatus.ERROR, PodStatus.FAILED),
    SandboxStatus.MISSING: (RuntimeStatus.STOPPED, PodStatus.NOT_FOUND),
}


def choose_spec(specs: Sequence[Spec], image: str, *, fallback: str) -> Spec:
    """Return the spec for an image, or the fallback; raises BadRequest without one."""
    candidates = (
        *(spec for spec in specs if spec.id == image),
        *(spec for spec in specs if spec.image and spec.image == image),
        *(spec for spec in specs if spec.id == fallback),
    )
    if candidates:
        return candidates[0]
    raise BadRequest(
        f"No sandbox spec of this server has the image `{image}`;"
        " its operator can name one for all others in `runtime_api.spec`"
    )


SANDBOXES: Final[web.AppKey[Sandboxes]] = web.AppKey("runtime_api_sandboxes")
CONVERSATIONS: Final[web.AppKey[Conversations]] = web.AppKey("runtime_api_conversations")
CONFIG: Final[web.AppKey[RuntimeApiConfig]] = web.AppKey("runtime_api_config")

_LISTED: Final = (SandboxStatus.STARTING, SandboxStatus.RUNNING)


ROUTES: Final = Routes(key_header="X-API-Key")
"""The API's clients send the key in this header."""

_EXAMPLE_START: Final = {
    "image": "process",
    "session_id": EXAMPLE_ID,
    "environment": {"LOG_JSON": "true"},
}


_EXAMPLE_CHOICE: Final = {"runtime_id": EXAMPLE_ID}


@ROUTES.add(
    "POST",
    "/start",
    errors=(BadRequest, OrderRejected, *OF_SANDBOXES, SandboxLimitReached),
    example=_EXAMPLE_START,
)
async def post_start(request: web.Request, body: RuntimeStart) -> Runtime:
    """Start a runtime, or get the one of this session.

    The same session always means the same runtime. It is `starting`; poll it until it is `running`.
    """
    if body.session_id == "batch":
        raise BadRequest("The session id `batch` is reserved: it is a path of this API")
    sandboxes = request.app[SANDBOXES]
    fallback = request.app[CONFIG].spec
    spec = choose_spec(sandboxes.specs(), body.image, fallback=fallback)
    sized = msgspec.structs.replace(spec, resource_factor=body.resource_factor)
    user_id = request[PRINCIPAL].user_id
    env = {name: Secret(value) for name, value in body.environment.items()}
    order = ClientOrder(id=body.session_id, env=env)
    return _encode(request, await sandboxes.start_for(user_id, sized, order))


@ROUTES.add("GET", "/sessions/batch", errors=(BadRequest,), example={"ids": [EXAMPLE_ID]})
async def get_batch(request: web.Request, query: SessionIds) -> list[Runtime]:
    """Get the runtimes of several sessions.

    A list of the runtimes; unknown sessions are omitted.
    """
    if len(query.ids) > IDS_MAX:
        raise BadRequest(f"Too many ids requested. Maximum is {IDS_MAX}.")
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, query.ids)
    return [_encode(request, one) for one in found]


@ROUTES.add("GET", "/sessions/{session_id}", errors=(NotFound,))
async def get_session(request: web.Request, session_id: str) -> Runtime:
    """Get the runtime of a session.

    As it is now.
    """
    user_id = request[PRINCIPAL].user_id
    found = await request.app[SANDBOXES].find_of_clients(user_id, [session_id])
    if not found:
        raise NotFound("There is no such session")
    return _encode(request, found[0])


@ROUTES.add("GET", "/runtime/{runtime_id}", errors=(NotFound,))
async def get_runtime(request: web.Request, runtime_id: str) -> Runtime:
    """Get a runtime.

    As it is now.
    """
    return _encode(request, await _get(request, runtime_id))


@ROUTES.add("GET", "/list")
async def get_list(request: web.Request) -> RuntimeList:
    """List the running runtimes.

    Those of the key's user, including starting ones.
    """
    found = await request.app[SANDBOXES].all_of_clients(request[PRINCIPAL].user_id)
    return RuntimeList(runtimes=[_encode(request, one) for one in found if one.status in _LISTED])


@ROUTES.add("POST", "/pause", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_pause(request: web.Request, body: RuntimeChoice) -> RuntimeDone:
    """Pause a runtime.

    It keeps its memory and files, or only its files, depending on its backend.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[SANDBOXES].pause(sandbox.user_id, sandbox.id)
    return DONE


@ROUTES.add("POST", "/resume", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_resume(request: web.Request, body: RuntimeChoice) -> Runtime:
    """Resume a runtime.

    The key in the response may differ from the previous one.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[CONVERSATIONS].resume(sandbox.user_id, sandbox.id)
    return _encode(request, await request.app[SANDBOXES].get(sandbox.user_id, sandbox.id))


@ROUTES.add("POST", "/stop", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_stop(request: web.Request, body: RuntimeChoice) -> RuntimeDone:
    """Delete a runtime and all its files.

    This cannot be undone.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[SANDBOXES].delete(sandbox.user_id, sandbox.id)
    return DONE


def _encode(request: web.Request, sandbox: Sandbox) -> Runtime:
    """Return a sandbox as a runtime; with `at_root`, its URL has no path."""
    status, pod_status = _STATUSES[sandbox.status]
    links, at_root = links_of(request), request.app[CONFIG].at_root
    return Runtime(
        runtime_id=sandbox.id,
        session_id=sandbox.client_id or sandbox.id,
        session_api_key=links.shown(sandbox.session_key) or "",
        url=links.runtime(sandbox.id, at_root=at_root),
        status=status,
        pod_status=pod_status,
        work_hosts={},
        image=sandbox.spec.image or sandbox.spec_id,
        restart_count=0,
        restart_reasons=[],
        created_at=to_stored(sandbox.created_at),
        working_dir=sandbox.working_dir or None,
        exit_code=sandbox.exit_code,
        detail=sandbox.reason or None,
        isolation=sandbox.isolation,
        ports_need_key=True,
        port_urls={end.name: links.port(sandbox, end.name) for end in sandbox.endpoints},
    )


async def _get(request: web.Request, runtime_id: str) -> Sandbox:
    """Return a sandbox that was started here; sandboxes of conversations are not found."""
    sandbox = await request.app[SANDBOXES].get(request[PRINCIPAL].user_id, runtime_id)
    if sandbox.client_id is None:
        raise NotFound
    return sandbox


class RuntimeApi(Extension[RuntimeApiConfig]):
    """The routes of the API, and the short paths that its clients rely on."""

    Config = RuntimeApiConfig
    prefix = "/runtime"
    operations = ROUTES

    def install(self, app: web.Application) -> None:
        """Mount the short paths of sandboxes."""
        mount_short_paths(app)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Pass the services to the handlers."""
        spec = self.config.spec
        if spec and spec not in [one.id for one in server.sandboxes.specs()]:
            raise StartFailed(f"runtime_api.spec is `{spec}`, and there is no such spec")
        server.app[SANDBOXES] = server.sandboxes
        server.app[CONVERSATIONS] = server.conversations
        server.app[CONFIG] = self.config
        yield
