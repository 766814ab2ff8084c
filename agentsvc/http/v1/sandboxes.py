"""Sandboxes and sandbox specs: their types on the wire, and handlers."""

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.accounts import Role
from agentsvc.base import (
    BackendBroken,
    BackendUnavailable,
    BadRequest,
    NotAllowed,
    NotFound,
    OrderRejected,
    QuotaExceeded,
    SandboxLimitReached,
    Secret,
    ServiceLimitReached,
    ShownSecret,
    Unsupported,
    copy_to,
    stated,
    to_stored,
    view_of,
)
from agentsvc.domain import WhenFull
from agentsvc.http.keys import (
    BACKENDS,
    CALLBACKS,
    CONFIG,
    CONVERSATIONS,
    PRINCIPAL,
    SANDBOX,
    SANDBOXES,
    user_of,
)
from agentsvc.http.middleware.pipeline import ACTIVITY
from agentsvc.http.port_origins import EDITOR_PORT
from agentsvc.http.routes import EXAMPLE_ID, OF_SANDBOXES, TEXT, Effect, Routes, Scope
from agentsvc.http.urls import Links, links_of
from agentsvc.http.wire import (
    SUCCESS,
    ClientId,
    EnvName,
    EnvValue,
    Page,
    PageQuery,
    Success,
    Time,
    json_response,
    page_at,
    page_offset,
    path_text,
    text_response,
)
from agentsvc.plugin import Cause, Isolation, PausedAs, Spec, Usage
from agentsvc.sandboxes import (
    AGENT_PORT,
    ClientOrder,
    Protection,
    Sandbox,
    SandboxStatus,
    UsageSample,
    find_protections,
)

IDS_MAX: Final = 100

_DEFAULT_WORKING_DIR: Final = "/workspace/project"


class ExposedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client reaches one port of a sandbox."""

    name: str
    """What is there: `AGENT_SERVER`, `VSCODE`, `WORKER_1`, …"""
    url: str
    """Where a client reaches it, through this server"""
    port: int
    """Port it listens on inside the sandbox"""


class UsageView(Usage, frozen=True, kw_only=True):
    """What a sandbox used at a moment; null is not known.

    `cpu_seconds` counts from when its command was last started.
    """

    measured_at: Time
    """When that was measured, in UTC"""


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """SandboxInfo; `status_detail` says why a sandbox is as it is, `status_cause` to programs.

    `isolation` is what is in force, null until it is known; `enforced_limits` names the limits of
    its spec that are; `paused_as` says what a paused one still has. `usage` is what it was last
    seen to use, null where its backend does not know or has not been asked yet.
    """

    id: str
    """Id of the sandbox; that of the conversation it was made for, 32 hex digits, or another text
    """
    created_by_user_id: str | None
    """Always null: one sees only sandboxes of one's own"""
    sandbox_spec_id: str
    """Spec it was made by"""
    status: SandboxStatus
    """What it does"""
    session_api_key: ShownSecret | None
    """Key of what runs in it, sent as `X-Session-API-Key`; it counts while the sandbox runs, and a
    resume may bring a new one. Null if it has failed or is gone"""
    exposed_urls: list[ExposedUrl] | None
    """Where its ports are reached; null unless it runs"""
    created_at: Time
    status_detail: str | None
    """Why it is as it is, for people; null if there is nothing to say"""
    facts: dict[str, str]
    """What its backend says of it, such as the name of a container, by name"""
    isolation: Isolation | None
    """How far it is kept from everything else; null until that is known"""
    paused_as: PausedAs | None
    """What it still has while it is paused; null if it is not"""
    status_cause: Cause | None
    """Why it has failed, for programs; null if it has not, or nobody knows"""
    enforced_limits: list[str]
    """Names of the limits of its spec that are in force"""
    client_id: str | None
    """What the order called it; null if the order had no `client_id`"""
    working_dir: str | None
    """Directory its command works in, as it is called inside; null until it is known"""
    exit_code: int | None
    """With what its command has ended; null while it runs, and after a signal"""
    usage: UsageView | None
    """What it was last seen to use; null where its backend does not know or has not been asked yet
    """


class SandboxSpecInfo(msgspec.Struct, frozen=True, kw_only=True):
    """SandboxSpecInfo: what sandboxes are made by; the operator writes them."""

    id: str
    """Id of the spec, which `sandbox_spec_id` takes"""
    command: list[str] | None
    """Program and arguments that run in a sandbox; null: what the image or the backend says"""
    created_at: Time
    initial_env: dict[str, str]
    """Environment variables of a sandbox, by name"""
    working_dir: str
    """Directory the command works in"""


class Ids(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a batch get by opaque ids."""

    ids: Annotated[list[str], stated(maxItems=IDS_MAX)] = msgspec.field(name="id")
    """At most 100 ids. Each is answered in its place, null for one that is unknown"""


class RoomChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What to do where as many sandboxes run as may; left out, as the server is configured."""

    when_full: WhenFull | None = None
    """What to do where as many sandboxes run as may; null or left out: as the server is configured
    """


class SpecChoice(RoomChoice, frozen=True, kw_only=True):
    """Which spec a new sandbox follows, and what to do where there is no room for it.

    The same in the query and in the body.
    """

    sandbox_spec_id: str | None = None
    """Spec of the new sandbox, as `sandbox-specs/search` lists them; null or left out: the user's
    default, else the first one"""


class SandboxOrder(SpecChoice, frozen=True, kw_only=True):
    """What a new sandbox is to be.

    With a `client_id` the same order twice gives one sandbox, whose environment has `env` besides
    what its spec says. That is for servers that keep sandboxes here.
    """

    client_id: ClientId | None = None
    """What the caller calls the sandbox: an order with the same one gives the sandbox there is.
    Null: every order makes a new one"""
    env: Annotated[dict[EnvName, EnvValue], Meta(max_length=500)] = {}
    """Environment variables by name, beside those of the spec; only together with a `client_id`"""
    resource_factor: Annotated[int, Meta(ge=1, le=64)] | None = None
    """How many times the limits of the spec the sandbox gets, as far as the server allows; null:
    what the user's settings say, else once"""


class SandboxChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox to delete, where the query names it."""

    sandbox_id: str | None = None
    """Id of the sandbox; it wins over the one in the path. Left out: the one in the path"""


class SecretName(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    """Name of the secret"""
    description: str | None
    """What it is for; null if that was not said"""


class SecretNames(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets a sandbox may ask for."""

    secrets: list[SecretName]
    """The secrets, without their values"""


def sized(spec: Spec, order: SandboxOrder) -> Spec:
    """Return the spec in the size that is asked for, if one is."""
    factor = order.resource_factor
    return spec if factor is None else msgspec.structs.replace(spec, resource_factor=factor)


def to_client_order(order: SandboxOrder) -> ClientOrder | None:
    """Return what a server that keeps a sandbox here says of it; raises BadRequest for half of it."""
    if order.client_id is None:
        if order.env:
            raise BadRequest("`env` needs a `client_id`")
        return None
    return ClientOrder(
        id=order.client_id, env={name: Secret(value) for name, value in order.env.items()}
    )


def check_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids of a batch get; raises BadRequest for too many."""
    if len(ids) > IDS_MAX:
        raise BadRequest(f"Too many ids requested. Maximum is {IDS_MAX}.")
    return ids


def from_sandbox(
    sandbox: Sandbox, links: Links, measured: UsageSample | None = None
) -> SandboxInfo:
    """Return a sandbox as clients see it; its URLs are shown only while it runs."""
    is_running = sandbox.status is SandboxStatus.RUNNING
    is_dead = sandbox.status in (SandboxStatus.ERROR, SandboxStatus.MISSING)
    return view_of(
        SandboxInfo,
        sandbox,
        created_by_user_id=None,
        sandbox_spec_id=sandbox.spec_id,
        session_api_key=None if is_dead else links.shown(sandbox.session_key),
        exposed_urls=_expose(sandbox, links) if is_running else None,
        status_detail=sandbox.reason or None,
        status_cause=sandbox.cause,
        enforced_limits=list(sandbox.enforced),
        working_dir=sandbox.working_dir or None,
        usage=from_measured(measured) if measured else None,
    )


def from_measured(measured: UsageSample) -> UsageView:
    """Return a measurement as clients see it."""
    return copy_to(UsageView, measured.usage, measured_at=to_stored(measured.at))


def _expose(sandbox: Sandbox, links: Links) -> list[ExposedUrl]:
    return [
        ExposedUrl(
            name="AGENT_SERVER" if end.name == AGENT_PORT else end.name.upper(),
            url=_url_of(sandbox, end.name, links),
            port=end.port,
        )
        for end in sandbox.endpoints
    ]


def _url_of(sandbox: Sandbox, name: str, links: Links) -> str:
    if name == AGENT_PORT:
        # The SDK's cloud workspace refuses an agent server whose address has a path.
        return links.agent_at_root(sandbox.id)
    if name == EDITOR_PORT:
        return links.editor(sandbox, sandbox.working_dir) or links.editor_root(sandbox)
    return links.worker(sandbox, name)


PREFIX: Final = "/api/v1/sandboxes"
SPECS_PREFIX: Final = "/api/v1/sandbox-specs"

ROUTES: Final = Routes()


def _answer(request: web.Request, sandbox: Sandbox) -> web.Response:
    return json_response(from_sandbox(sandbox, links_of(request)))


def _measured(request: web.Request, sandbox: Sandbox) -> SandboxInfo:
    """Return a sandbox as clients see it, with what it was last seen to use."""
    measured = request.app[SANDBOXES].meter.find(sandbox)
    return from_sandbox(sandbox, links_of(request), measured)


@ROUTES.add("GET", f"{PREFIX}/search", example={"limit": 10})
async def search_sandboxes(request: web.Request, query: PageQuery) -> Page[SandboxInfo]:
    """List sandboxes, newest first.

    Sandboxes of one's own, also failed ones.
    """
    found, next_page_id = await request.app[SANDBOXES].search(
        user_of(request), page_id=query.page_id, limit=query.limit
    )
    return Page(items=[_measured(request, one) for one in found], next_page_id=next_page_id)


@ROUTES.add("GET", PREFIX, errors=(BadRequest,), example={"id": [EXAMPLE_ID]})
async def get_sandboxes(request: web.Request, query: Ids) -> list[SandboxInfo | None]:
    """Get sandboxes by id.

    A list of as many items as `id` is given, in their order, null for each that is unknown.
    """
    ids = check_ids(query.ids)
    found = await request.app[SANDBOXES].find_many(user_of(request), ids)
    return [_measured(request, one) if one else None for one in found]


@ROUTES.add(
    "POST",
    PREFIX,
    SandboxInfo,
    effect=Effect(kind=Sandbox, answer=_answer),
    errors=(*(BadRequest, OrderRejected, *OF_SANDBOXES, SandboxLimitReached, ServiceLimitReached),),
)
async def post_sandbox(
    request: web.Request, query: SpecChoice, body: SandboxOrder | None
) -> Sandbox:
    """Start a sandbox.

    The sandbox is `STARTING`; ask for it until it is `RUNNING` or `ERROR`. The body may be left
    out; what the query says wins over it. With a `client_id` the same order twice gives one
    sandbox.
    """
    order = body or SandboxOrder()
    spec = request.app[SANDBOXES].get_spec(query.sandbox_spec_id or order.sandbox_spec_id)
    try:
        return await request.app[SANDBOXES].start_for(
            user_of(request),
            sized(spec, order),
            to_client_order(order),
            when_full=query.when_full or order.when_full,
        )
    except (QuotaExceeded, SandboxLimitReached) as exc:
        if request[PRINCIPAL].is_service:
            raise ServiceLimitReached(exc.message) from exc
        raise


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}", errors=(NotFound,))
async def get_sandbox(request: web.Request, sandbox_id: str) -> SandboxInfo:
    """Get a sandbox.

    As it was last seen, with what it uses.
    """
    sandbox = await request.app[SANDBOXES].get(user_of(request), sandbox_id)
    return _measured(request, sandbox)


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}/usage", errors=(NotFound,))
async def get_usage(request: web.Request, sandbox_id: str) -> list[UsageView]:
    """Return what a sandbox has used lately.

    What it used at each look since the server started, oldest first, up to 240 of them. One is
    taken every `sandboxes.sweep_seconds`.
    """
    sandboxes = request.app[SANDBOXES]
    sandbox = await sandboxes.get(user_of(request), sandbox_id)
    return [from_measured(one) for one in sandboxes.meter.recent(sandbox)]


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/pause", errors=OF_SANDBOXES)
async def post_pause(request: web.Request, sandbox_id: str) -> Success:
    """Pause a sandbox.

    It keeps what its backend can keep: its memory, or its files only (`paused_as`). Pausing a
    paused one is fine. Conversations in it cannot be used until it is resumed.
    """
    await request.app[SANDBOXES].pause(user_of(request), sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/stop", errors=OF_SANDBOXES)
async def post_stop(request: web.Request, sandbox_id: str) -> Success:
    """Stop a sandbox: it keeps its files only, and is started again by resume.

    A resume starts its command anew. Stopping a stopped one is fine.
    """
    await request.app[SANDBOXES].stop(user_of(request), sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/resume", errors=(*OF_SANDBOXES, SandboxLimitReached))
async def post_resume(request: web.Request, sandbox_id: str, query: RoomChoice) -> Success:
    """Resume a sandbox.

    It is `STARTING` at first; read its session key and URLs again when it is `RUNNING`. Resuming a
    running one is fine.
    """
    conversations, when_full = request.app[CONVERSATIONS], query.when_full
    await conversations.resume(user_of(request), sandbox_id, when_full=when_full)
    return SUCCESS


@ROUTES.add("DELETE", f"{PREFIX}/{{sandbox_id}}", errors=OF_SANDBOXES)
async def delete_sandbox(request: web.Request, query: SandboxChoice) -> Success:
    """Delete a sandbox with all its files.

    It is gone for its user at once; what held it is removed in the background. It cannot be undone.
    A `sandbox_id` in the query wins over the path, for old clients.
    """
    sandbox_id = query.sandbox_id or path_text(request, "sandbox_id")
    await request.app[SANDBOXES].delete(user_of(request), sandbox_id)
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
    return page_at(_specs(request), page_offset(query.page_id), query.limit)


@ROUTES.add("GET", SPECS_PREFIX, errors=(BadRequest,), example={"id": ["process"]})
async def get_sandbox_specs(request: web.Request, query: Ids) -> list[SandboxSpecInfo | None]:
    """Get sandbox specs by id.

    A list of as many items as `id` is given, in their order, null for each that is unknown.
    """
    ids = check_ids(query.ids)
    known = {spec.id: spec for spec in _specs(request)}
    return [known.get(spec_id) for spec_id in ids]


def _specs(request: web.Request) -> list[SandboxSpecInfo]:
    created_at = to_stored(request.app[ACTIVITY].started_at)
    return [
        SandboxSpecInfo(
            id=spec.id,
            command=list(spec.command) if spec.command is not None else None,
            created_at=created_at,
            initial_env=spec.env,
            working_dir=spec.working_dir or _DEFAULT_WORKING_DIR,
        )
        for spec in request.app[SANDBOXES].specs()
    ]


def calling_sandbox(request: web.Request) -> Sandbox:
    """Return the sandbox that calls; raises NotAllowed if the path names another one."""
    sandbox = request[SANDBOX]
    if request.match_info.get("sandbox_id", sandbox.id) != sandbox.id:
        raise NotAllowed("Session API key does not match sandbox")
    return sandbox


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """How many lines to return."""

    tail: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """How many lines to return at most, the last ones"""


class SandboxLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines a sandbox wrote, oldest first; values of its secrets are stars."""

    lines: list[str]
    """The lines, oldest first; values of secrets are shown as stars"""


@ROUTES.add(
    "GET",
    f"{PREFIX}/{{sandbox_id}}/logs",
    errors=(NotFound, Unsupported, BackendUnavailable, BackendBroken),
    example={"tail": 50},
)
async def get_logs(request: web.Request, sandbox_id: str, query: Tail) -> SandboxLog:
    """Return the last lines a sandbox has written.

    What its command wrote to its output, and its backend about it. Values of its secrets are shown
    as stars. Refused (409) where its backend keeps none.
    """
    sandboxes = request.app[SANDBOXES]
    sandbox = await sandboxes.get(user_of(request), sandbox_id)
    return SandboxLog(lines=await sandboxes.read_output(sandbox, lines=query.tail))
