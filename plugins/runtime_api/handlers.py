"""Handlers of the remote runtime API."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, NotFound, OrderRejected, SandboxLimitReached
from agentsvc.extension.server import Extension, Sandbox, Sandboxes, SandboxStatus, Server
from agentsvc.extension.web import (
    EXAMPLE_ID,
    OF_SANDBOXES,
    PRINCIPAL,
    Route,
    Routes,
    links_of,
    mount_short_paths,
    path_text,
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


ROUTES: Final = Routes(key_header="X-API-Key")
"""Its clients have the key there."""

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

    The same session twice is the same runtime. It is `starting`; ask for it until it is `running`.
    """
    sandboxes = request.app[SANDBOXES]
    fallback = request.app[SETTINGS].spec
    spec = choose_spec(sandboxes.specs(), body.image, fallback=fallback)
    sized = msgspec.structs.replace(spec, resource_factor=body.resource_factor)
    user_id = request[PRINCIPAL].user_id
    return _shown(request, await sandboxes.start_for(user_id, sized, to_client_order(body)))


@ROUTES.add("GET", "/sessions/batch", errors=(BadRequest,), example={"ids": [EXAMPLE_ID]})
async def get_batch(request: web.Request, query: SessionIds) -> list[Runtime]:
    """Get the runtimes of several sessions.

    A list of the runtimes; unknown sessions are left out.
    """
    ids = check_ids(query.ids)
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    return [_shown(request, one) for one in found]


@ROUTES.add("GET", "/sessions/{session_id}", errors=(NotFound,))
async def get_session(request: web.Request) -> Runtime:
    """Get the runtime of a session.

    As it is now.
    """
    ids = [path_text(request, "session_id")]
    found = await request.app[SANDBOXES].find_of_clients(request[PRINCIPAL].user_id, ids)
    if not found:
        raise NotFound("There is no such session")
    return _shown(request, found[0])


@ROUTES.add("GET", "/runtime/{runtime_id}", errors=(NotFound,))
async def get_runtime(request: web.Request) -> Runtime:
    """Get a runtime.

    As it is now.
    """
    return _shown(request, await _get(request, path_text(request, "runtime_id")))


@ROUTES.add("GET", "/list")
async def get_list(request: web.Request) -> RuntimeList:
    """List the runtimes that run.

    Those of the user of the key.
    """
    found = await request.app[SANDBOXES].all_of_clients(request[PRINCIPAL].user_id)
    return RuntimeList(runtimes=[_shown(request, one) for one in found if one.status in _LISTED])


@ROUTES.add("POST", "/pause", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_pause(request: web.Request, body: RuntimeChoice) -> RuntimeDone:
    """Pause a runtime.

    It keeps what its backend can keep: its memory, or its files only.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[SANDBOXES].pause(sandbox.user_id, sandbox.id)
    return DONE


@ROUTES.add("POST", "/resume", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_resume(request: web.Request, body: RuntimeChoice) -> Runtime:
    """Resume a runtime.

    The key in the answer may be another one than before.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[SANDBOXES].resume(sandbox.user_id, sandbox.id)
    return _shown(request, await request.app[SANDBOXES].get(sandbox.user_id, sandbox.id))


@ROUTES.add("POST", "/stop", errors=OF_SANDBOXES, example=_EXAMPLE_CHOICE)
async def post_stop(request: web.Request, body: RuntimeChoice) -> RuntimeDone:
    """Remove a runtime with all its files.

    The runtime is removed with all its files. It cannot be undone.
    """
    sandbox = await _get(request, body.runtime_id)
    await request.app[SANDBOXES].delete(sandbox.user_id, sandbox.id)
    return DONE


def _shown(request: web.Request, sandbox: Sandbox) -> Runtime:
    at_root = request.app[SETTINGS].at_root
    return from_sandbox(sandbox, links_of(request), at_root=at_root)


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
