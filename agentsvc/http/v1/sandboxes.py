"""Handlers of sandboxes and sandbox specs."""

from typing import Final

import msgspec
from aiohttp import web

from agentsvc.accounts import Role
from agentsvc.base import (
    BadRequest,
    NotAllowed,
    NotFound,
    OrderRejected,
    QuotaExceeded,
    SandboxLimitReached,
    ServiceLimitReached,
)
from agentsvc.http.keys import BACKENDS, CALLBACKS, CONFIG, PRINCIPAL, SANDBOX, SANDBOXES
from agentsvc.http.middleware.pipeline import ACTIVITY
from agentsvc.http.routes import EXAMPLE_ID, OF_SANDBOXES, TEXT, Effect, Routes, Scope
from agentsvc.http.urls import links_of
from agentsvc.http.v1.types_sandboxes import (
    Ids,
    RoomChoice,
    SandboxChoice,
    SandboxInfo,
    SandboxOrder,
    SandboxSpecInfo,
    SecretName,
    SecretNames,
    SpecChoice,
    UsageView,
    check_ids,
    find_specs,
    from_measured,
    from_sandbox,
    from_sandboxes,
    page_of_specs,
    sized,
    to_client_order,
)
from agentsvc.http.wire import (
    SUCCESS,
    Page,
    PageQuery,
    Success,
    json_response,
    path_text,
    read_json,
    text_response,
)
from agentsvc.sandboxes import Protection, Sandbox, find_protections

PREFIX: Final = "/api/v1/sandboxes"
SPECS_PREFIX: Final = "/api/v1/sandbox-specs"

_ORDER = msgspec.json.Decoder(SandboxOrder | None)

ROUTES: Final = Routes()


def _answer(request: web.Request, sandbox: Sandbox) -> web.Response:
    return json_response(from_sandbox(sandbox, links_of(request)))


@ROUTES.add("GET", f"{PREFIX}/search", Page[SandboxInfo], example={"limit": 10})
async def search_sandboxes(request: web.Request, query: PageQuery) -> web.Response:
    """List sandboxes, newest first.

    Sandboxes of one's own, also failed ones.
    """
    found, next_page_id = await request.app[SANDBOXES].search(
        request[PRINCIPAL].user_id, page_id=query.page_id, limit=query.limit
    )
    return json_response(
        Page(
            items=from_sandboxes(found, links_of(request), request.app[SANDBOXES].meter),
            next_page_id=next_page_id,
        )
    )


@ROUTES.add("GET", PREFIX, errors=(BadRequest,), example={"id": [EXAMPLE_ID]})
async def get_sandboxes(request: web.Request, query: Ids) -> list[SandboxInfo | None]:
    """Get sandboxes by id.

    A list of as many items as `id` is given, in their order, null for each that is unknown.
    """
    ids = check_ids(query.ids)
    found = await request.app[SANDBOXES].find_many(request[PRINCIPAL].user_id, ids)
    return from_sandboxes(found, links_of(request), request.app[SANDBOXES].meter)


@ROUTES.add(
    "POST",
    PREFIX,
    SandboxInfo,
    body=SandboxOrder | None,
    effect=Effect(kind=Sandbox, answer=_answer),
    errors=(*(BadRequest, OrderRejected, *OF_SANDBOXES, SandboxLimitReached, ServiceLimitReached),),
)
async def post_sandbox(request: web.Request, query: SpecChoice) -> web.Response:
    """Start a sandbox.

    The sandbox is `STARTING`; ask for it until it is `RUNNING` or `ERROR`. The body may be left
    out; what the query says wins over it. With a `client_id` the same order twice gives one
    sandbox.
    """
    body = await read_json(request, _ORDER, default=None) or SandboxOrder()
    spec = request.app[SANDBOXES].get_spec(query.sandbox_spec_id or body.sandbox_spec_id)
    try:
        sandbox = await request.app[SANDBOXES].start_any(
            request[PRINCIPAL].user_id,
            sized(spec, body),
            to_client_order(body),
            when_full=query.when_full or body.when_full,
        )
    except (QuotaExceeded, SandboxLimitReached) as exc:
        if request[PRINCIPAL].is_service:
            raise ServiceLimitReached(exc.message) from exc
        raise
    return _answer(request, sandbox)


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}", SandboxInfo, errors=(NotFound,))
async def get_sandbox(request: web.Request) -> web.Response:
    """Get a sandbox.

    As it was last seen, with what it uses.
    """
    sandbox_id = path_text(request, "sandbox_id")
    sandbox = await request.app[SANDBOXES].get(request[PRINCIPAL].user_id, sandbox_id)
    [shown] = from_sandboxes([sandbox], links_of(request), request.app[SANDBOXES].meter)
    return json_response(shown)


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}/usage", errors=(NotFound,))
async def get_usage(request: web.Request) -> list[UsageView]:
    """Return what a sandbox has used lately.

    What it used at each look since the server started, oldest first, up to 240 of them. One is
    taken every `sandboxes.sweep_seconds`.
    """
    sandboxes = request.app[SANDBOXES]
    sandbox = await sandboxes.get(request[PRINCIPAL].user_id, path_text(request, "sandbox_id"))
    return [from_measured(one) for one in sandboxes.meter.recent(sandbox)]


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/pause", errors=OF_SANDBOXES)
async def post_pause(request: web.Request) -> Success:
    """Pause a sandbox.

    It keeps what its backend can keep: its memory, or its files only (`paused_as`). Pausing a
    paused one is fine. Conversations in it cannot be used until it is resumed.
    """
    sandbox_id = path_text(request, "sandbox_id")
    await request.app[SANDBOXES].pause(request[PRINCIPAL].user_id, sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/stop", errors=OF_SANDBOXES)
async def post_stop(request: web.Request) -> Success:
    """Stop a sandbox: it keeps its files only, and is started again by resume.

    A resume starts its command anew. Stopping a stopped one is fine.
    """
    sandbox_id = path_text(request, "sandbox_id")
    await request.app[SANDBOXES].stop(request[PRINCIPAL].user_id, sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/resume", errors=(*OF_SANDBOXES, SandboxLimitReached))
async def post_resume(request: web.Request, query: RoomChoice) -> Success:
    """Resume a sandbox.

    It is `STARTING` at first; read its session key and URLs again when it is `RUNNING`. Resuming a
    running one is fine.
    """
    sandbox_id = path_text(request, "sandbox_id")
    when_full = query.when_full
    await request.app[SANDBOXES].resume(request[PRINCIPAL].user_id, sandbox_id, when_full=when_full)
    return SUCCESS


@ROUTES.add("DELETE", f"{PREFIX}/{{sandbox_id}}", errors=OF_SANDBOXES)
async def delete_sandbox(request: web.Request, query: SandboxChoice) -> Success:
    """Delete a sandbox with all its files.

    It is gone for its user at once; what held it is removed in the background. It cannot be undone.
    A `sandbox_id` in the query wins over the path, for old clients.
    """
    named = query.sandbox_id
    sandbox_id = named or path_text(request, "sandbox_id")
    await request.app[SANDBOXES].delete(request[PRINCIPAL].user_id, sandbox_id)
    return SUCCESS


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}/settings/secrets", scope=Scope.SANDBOX)
async def get_secrets(request: web.Request) -> SecretNames:
    """Name the secrets a sandbox may ask for.

    The secrets of its user, and tokens of git providers under names such as `github_token`. The
    path has to name the sandbox whose key it is.
    """
    secrets = await request.app[CALLBACKS].sandbox_secrets(calling_sandbox(request))
    names = [SecretName(name=name, description=text) for name, (text, _) in secrets.items()]
    return SecretNames(secrets=names)


@ROUTES.add(
    "GET",
    f"{PREFIX}/{{sandbox_id}}/settings/secrets/{{secret_name}}",
    str,
    scope=Scope.SANDBOX,
    media=TEXT,
)
async def get_secret(request: web.Request) -> web.Response:
    """Get the value of a secret.

    The value as plain text. The path has to name the sandbox whose key it is.
    """
    secrets = await request.app[CALLBACKS].sandbox_secrets(calling_sandbox(request))
    found = secrets.get(path_text(request, "secret_name"))
    if found is None:
        raise NotFound("Secret not found")
    return text_response(found[1].reveal())


@ROUTES.add("GET", "/api/v1/protection")
async def get_protection(request: web.Request) -> list[Protection]:
    """Say how sandboxes are held here, at the default backend first.

    One item for each backend, the default one first. Why a level is not higher, and what to do
    about it, is told to administrators only.
    """
    found = find_protections(request.app[BACKENDS], request.app[CONFIG].sandboxes)
    if request[PRINCIPAL].role is not Role.ADMIN:
        found = [msgspec.structs.replace(one, reason="", remedy="") for one in found]
    return found


@ROUTES.add("GET", f"{SPECS_PREFIX}/search", example={"limit": 10})
async def search_sandbox_specs(request: web.Request, query: PageQuery) -> Page[SandboxSpecInfo]:
    """List sandbox specs, the default one first.

    As the operator has written them, the default one first.
    """
    specs, created_at = request.app[SANDBOXES].specs(), request.app[ACTIVITY].started_at
    return page_of_specs(specs, created_at, page_id=query.page_id, limit=query.limit)


@ROUTES.add("GET", SPECS_PREFIX, errors=(BadRequest,), example={"id": ["process"]})
async def get_sandbox_specs(request: web.Request, query: Ids) -> list[SandboxSpecInfo | None]:
    """Get sandbox specs by id.

    A list of as many items as `id` is given, in their order, null for each that is unknown.
    """
    ids = check_ids(query.ids)
    specs, created_at = request.app[SANDBOXES].specs(), request.app[ACTIVITY].started_at
    return find_specs(specs, ids, created_at)


def calling_sandbox(request: web.Request) -> Sandbox:
    """Return the sandbox that calls; raises NotAllowed if the path names another one."""
    sandbox = request[SANDBOX]
    if request.match_info.get("sandbox_id", sandbox.id) != sandbox.id:
        raise NotAllowed("Session API key does not match sandbox")
    return sandbox
