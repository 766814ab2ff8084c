"""Handlers of the remote runtime API."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aiohttp import hdrs, web

from agentsvc.base import BadRequest, NotFound, OrderRejected, SandboxLimitReached
from agentsvc.extension.server import Extension, Sandbox, Sandboxes, SandboxStatus, Server
from agentsvc.extension.web import (
    EXAMPLE_ID,
    OF_SANDBOXES,
    PRINCIPAL,
    Example,
    Handler,
    Route,
    Scope,
    json_response,
    links_of,
    mount_short_paths,
    path_text,
    read_json,
    read_query,
)

from .settings import RuntimeApiConfig
from .types import (
    DONE,
    Runtime,
    RuntimeChoice,
    RuntimeDone,
    RuntimeList,
    RuntimeStart,
    SessionIds,
    check_ids,
    choose_spec,
    from_sandbox,
    to_client_order,
)

SANDBOXES: Final[web.AppKey[Sandboxes]] = web.AppKey("runtime_api_sandboxes")
SETTINGS: Final[web.AppKey[RuntimeApiConfig]] = web.AppKey("runtime_api_settings")

_START = msgspec.json.Decoder(RuntimeStart)
_CHOICE = msgspec.json.Decoder(RuntimeChoice)
_LISTED: Final = (SandboxStatus.STARTING, SandboxStatus.RUNNING)


async def post_start(request: web.Request) -> web.Response:
    """POST /start.

    The same session twice is the same runtime. It is `starting`; ask for it until it is `running`.
    """
    start = await read_json(request, _START)
    sandboxes = request.app[SANDBOXES]
    fallback = request.app[SETTINGS].spec
    spec = choose_spec(sandboxes.specs(), start.image, fallback=fallback)
    sized = msgspec.structs.replace(spec, resource_factor=start.resource_factor)
    user_id = request[PRINCIPAL].user_id
    sandbox = await sandboxes.start_for(user_id, sized, to_client_order(start))
    return json_response(_shown(request, sandbox))


async def get_batch(request: web.Request) -> web.Response:
    """GET /sessions/batch.

    A list of the runtimes; unknown sessions are left out.
    """
    ids = check_ids(read_query(request, SessionIds).ids)
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    return json_response([_shown(request, one) for one in found])


async def get_session(request: web.Request) -> web.Response:
    """GET /sessions/{session_id}.

    As it is now.
    """
    ids = [path_text(request, "session_id")]
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    if not found:
        raise NotFound("There is no such session")
    return json_response(_shown(request, found[0]))


async def get_runtime(request: web.Request) -> web.Response:
    """GET /runtime/{runtime_id}.

    As it is now.
    """
    found = await _get(request, path_text(request, "runtime_id"))
    return json_response(_shown(request, found))


async def get_list(request: web.Request) -> web.Response:
    """GET /list.

    Those of the user of the key.
    """
    found = await request.app[SANDBOXES].all_of_clients(request[PRINCIPAL].user_id)
    running = [_shown(request, one) for one in found if one.status in _LISTED]
    return json_response(RuntimeList(runtimes=running))


async def post_pause(request: web.Request) -> web.Response:
    """POST /pause.

    It keeps what its backend can keep: its memory, or its files only.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].pause(sandbox.user_id, sandbox.id)
    return json_response(DONE)


async def post_resume(request: web.Request) -> web.Response:
    """POST /resume.

    The key in the answer may be another one than before.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].resume(sandbox.user_id, sandbox.id)
    found = await request.app[SANDBOXES].get(sandbox.user_id, sandbox.id)
    return json_response(_shown(request, found))


async def post_stop(request: web.Request) -> web.Response:
    """POST /stop.

    The runtime is removed with all its files. It cannot be undone.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].delete(sandbox.user_id, sandbox.id)
    return json_response(DONE)


def _shown(request: web.Request, sandbox: Sandbox) -> Runtime:
    at_root = request.app[SETTINGS].at_root
    return from_sandbox(sandbox, links_of(request), at_root=at_root)


async def _chosen(request: web.Request) -> Sandbox:
    return await _get(request, (await read_json(request, _CHOICE)).runtime_id)


async def _get(request: web.Request, runtime_id: str) -> Sandbox:
    """Return a sandbox that was started here; those of conversations are not for this API."""
    sandbox = await request.app[SANDBOXES].get(request[PRINCIPAL].user_id, runtime_id)
    if sandbox.client_id is None:
        raise NotFound
    return sandbox


def _route(method: str, path: str, handler: Handler, summary: str, **more: Any) -> Route:
    """Return a route for users, whose key is where clients of this API put it."""
    return Route(
        method=method,
        path=path,
        handler=handler,
        scope=Scope.READ if method == hdrs.METH_GET else Scope.RUN,
        rank="P2",
        summary=summary,
        key_header="X-API-Key",
        **more,
    )


_EXAMPLE_START: Final = {
    "image": "process",
    "session_id": EXAMPLE_ID,
    "environment": {"LOG_JSON": "true"},
}
_EXAMPLE_CHOICE: Final = {"runtime_id": EXAMPLE_ID}

ROUTES: Final = (
    _route(
        "POST",
        "/start",
        post_start,
        "Start a runtime, or get the one of this session",
        body=RuntimeStart,
        answer=Runtime,
        errors=(BadRequest, OrderRejected, *OF_SANDBOXES, SandboxLimitReached),
        example=Example(body=_EXAMPLE_START),
    ),
    _route(
        "GET",
        "/sessions/batch",
        get_batch,
        "Get the runtimes of several sessions",
        query=SessionIds,
        answer=list[Runtime],
        errors=(BadRequest,),
        example=Example(query={"ids": [EXAMPLE_ID]}),
    ),
    _route(
        "GET",
        "/sessions/{session_id}",
        get_session,
        "Get the runtime of a session",
        answer=Runtime,
        errors=(NotFound,),
    ),
    _route(
        "GET",
        "/runtime/{runtime_id}",
        get_runtime,
        "Get a runtime",
        answer=Runtime,
        errors=(NotFound,),
    ),
    _route(
        "GET",
        "/list",
        get_list,
        "List the runtimes that run",
        answer=RuntimeList,
    ),
    _route(
        "POST",
        "/pause",
        post_pause,
        "Pause a runtime",
        body=RuntimeChoice,
        answer=RuntimeDone,
        errors=OF_SANDBOXES,
        example=Example(body=_EXAMPLE_CHOICE),
    ),
    _route(
        "POST",
        "/resume",
        post_resume,
        "Resume a runtime",
        body=RuntimeChoice,
        answer=Runtime,
        errors=OF_SANDBOXES,
        example=Example(body=_EXAMPLE_CHOICE),
    ),
    _route(
        "POST",
        "/stop",
        post_stop,
        "Remove a runtime with all its files",
        body=RuntimeChoice,
        answer=RuntimeDone,
        errors=OF_SANDBOXES,
        example=Example(body=_EXAMPLE_CHOICE),
    ),
)


class RuntimeApi(Extension[RuntimeApiConfig]):
    """The routes of the API, and the short paths that its clients count on."""

    Config = RuntimeApiConfig
    prefix = "/runtime"

    def routes(self) -> Iterable[Route]:
        """Return the routes."""
        return ROUTES

    def install(self, app: web.Application) -> None:
        """Let sandboxes be reached at short paths."""
        mount_short_paths(app)

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Give the handlers what they need."""
        server.app[SANDBOXES] = server.sandboxes
        server.app[SETTINGS] = self.config
        yield
