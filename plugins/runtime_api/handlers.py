"""Handlers of the remote runtime API."""

from collections.abc import AsyncIterator, Callable, Iterable
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
    Routes,
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

_LISTED: Final = (SandboxStatus.STARTING, SandboxStatus.RUNNING)


ROUTES: Final = Routes()


def _add(method: str, path: str, **described: Any) -> Callable[[Handler], Handler]:
    """Add an operation for users, whose key is where clients of this API put it."""
    scope = Scope.READ if method == hdrs.METH_GET else Scope.RUN
    return ROUTES.add(method, path, scope=scope, key_header="X-API-Key", **described)


_EXAMPLE_START: Final = {
    "image": "process",
    "session_id": EXAMPLE_ID,
    "environment": {"LOG_JSON": "true"},
}


_EXAMPLE_CHOICE: Final = {"runtime_id": EXAMPLE_ID}


@_add(
    "POST",
    "/start",
    body=RuntimeStart,
    answer=Runtime,
    errors=(BadRequest, OrderRejected, *OF_SANDBOXES, SandboxLimitReached),
    example=Example(body=_EXAMPLE_START),
)
async def post_start(request: web.Request) -> web.Response:
    """Start a runtime, or get the one of this session.

    The same session twice is the same runtime. It is `starting`; ask for it until it is `running`.
    """
    start = await read_json(request, RuntimeStart)
    sandboxes = request.app[SANDBOXES]
    fallback = request.app[SETTINGS].spec
    spec = choose_spec(sandboxes.specs(), start.image, fallback=fallback)
    sized = msgspec.structs.replace(spec, resource_factor=start.resource_factor)
    user_id = request[PRINCIPAL].user_id
    sandbox = await sandboxes.start_for(user_id, sized, to_client_order(start))
    return json_response(_shown(request, sandbox))


@_add(
    "GET",
    "/sessions/batch",
    query=SessionIds,
    answer=list[Runtime],
    errors=(BadRequest,),
    example=Example(query={"ids": [EXAMPLE_ID]}),
)
async def get_batch(request: web.Request) -> web.Response:
    """Get the runtimes of several sessions.

    A list of the runtimes; unknown sessions are left out.
    """
    ids = check_ids(read_query(request, SessionIds).ids)
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    return json_response([_shown(request, one) for one in found])


@_add("GET", "/sessions/{session_id}", answer=Runtime, errors=(NotFound,))
async def get_session(request: web.Request) -> web.Response:
    """Get the runtime of a session.

    As it is now.
    """
    ids = [path_text(request, "session_id")]
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    if not found:
        raise NotFound("There is no such session")
    return json_response(_shown(request, found[0]))


@_add("GET", "/runtime/{runtime_id}", answer=Runtime, errors=(NotFound,))
async def get_runtime(request: web.Request) -> web.Response:
    """Get a runtime.

    As it is now.
    """
    found = await _get(request, path_text(request, "runtime_id"))
    return json_response(_shown(request, found))


@_add("GET", "/list", answer=RuntimeList)
async def get_list(request: web.Request) -> web.Response:
    """List the runtimes that run.

    Those of the user of the key.
    """
    found = await request.app[SANDBOXES].all_of_clients(request[PRINCIPAL].user_id)
    running = [_shown(request, one) for one in found if one.status in _LISTED]
    return json_response(RuntimeList(runtimes=running))


@_add(
    "POST",
    "/pause",
    body=RuntimeChoice,
    answer=RuntimeDone,
    errors=OF_SANDBOXES,
    example=Example(body=_EXAMPLE_CHOICE),
)
async def post_pause(request: web.Request) -> web.Response:
    """Pause a runtime.

    It keeps what its backend can keep: its memory, or its files only.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].pause(sandbox.user_id, sandbox.id)
    return json_response(DONE)


@_add(
    "POST",
    "/resume",
    body=RuntimeChoice,
    answer=Runtime,
    errors=OF_SANDBOXES,
    example=Example(body=_EXAMPLE_CHOICE),
)
async def post_resume(request: web.Request) -> web.Response:
    """Resume a runtime.

    The key in the answer may be another one than before.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].resume(sandbox.user_id, sandbox.id)
    found = await request.app[SANDBOXES].get(sandbox.user_id, sandbox.id)
    return json_response(_shown(request, found))


@_add(
    "POST",
    "/stop",
    body=RuntimeChoice,
    answer=RuntimeDone,
    errors=OF_SANDBOXES,
    example=Example(body=_EXAMPLE_CHOICE),
)
async def post_stop(request: web.Request) -> web.Response:
    """Remove a runtime with all its files.

    The runtime is removed with all its files. It cannot be undone.
    """
    sandbox = await _chosen(request)
    await request.app[SANDBOXES].delete(sandbox.user_id, sandbox.id)
    return json_response(DONE)


def _shown(request: web.Request, sandbox: Sandbox) -> Runtime:
    at_root = request.app[SETTINGS].at_root
    return from_sandbox(sandbox, links_of(request), at_root=at_root)


async def _chosen(request: web.Request) -> Sandbox:
    return await _get(request, (await read_json(request, RuntimeChoice)).runtime_id)


async def _get(request: web.Request, runtime_id: str) -> Sandbox:
    """Return a sandbox that was started here; those of conversations are not for this API."""
    sandbox = await request.app[SANDBOXES].get(request[PRINCIPAL].user_id, runtime_id)
    if sandbox.client_id is None:
        raise NotFound
    return sandbox


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
