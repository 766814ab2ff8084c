"""Sandboxes and sandbox specs: wire structs and handlers."""

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
    """URL of one port of a sandbox."""

    name: str
    """Name of the port: `AGENT_SERVER`, `VSCODE`, `WORKER_1`, …"""
    url: str
    """URL of the port, proxied by this server"""
    port: int
    """Port number inside the sandbox"""


class UsageView(Usage, frozen=True, kw_only=True):
    """Resource usage of a sandbox at one time; unknown values are null.

    `cpu_seconds` counts from the last start of its command.
    """

    measured_at: Time
    """Time of the measurement, in UTC"""


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """SandboxInfo: a sandbox. `status_detail` explains its status, `status_cause` to programs.

    `isolation` and `enforced_limits` are what the backend enforces; `paused_as` is what a paused
    sandbox keeps. `usage` is the last measurement, null if the backend does not measure or there is
    no measurement yet.
    """

    id: str
    """Id of the sandbox: that of the conversation it was created for, 32 hex digits, or another
    string"""
    created_by_user_id: str | None
    """Always null: users see only their own sandboxes"""
    sandbox_spec_id: str
    """Id of the spec of the sandbox"""
    status: SandboxStatus
    """Status of the sandbox"""
    session_api_key: ShownSecret | None
    """Key for the ports of the sandbox, sent as `X-Session-API-Key`. It is valid while the sandbox
    is running and may change when it is resumed. Null if the sandbox has failed or is gone"""
    exposed_urls: list[ExposedUrl] | None
    """URLs of the ports; null unless the sandbox is running"""
    created_at: Time
    status_detail: str | None
    """Explanation of the status, for people; null if there is none"""
    facts: dict[str, str]
    """Details from the backend by name, such as the name of the container"""
    isolation: Isolation | None
    """Isolation in force; null until it is known"""
    paused_as: PausedAs | None
    """What a paused sandbox keeps; null unless it is paused"""
    status_cause: Cause | None
    """Cause of a failure, for programs; null without a failure, or if the cause is unknown"""
    enforced_limits: list[str]
    """Names of the limits of the spec that are in force"""
    client_id: str | None
    """`client_id` of the request that created the sandbox; null if it had none"""
    working_dir: str | None
    """Working directory of the command, as a path inside the sandbox; null until it is known"""
    exit_code: int | None
    """Exit code of the command; null while it runs, and if a signal ended it"""
    usage: UsageView | None
    """Last measured resource usage; null if the backend does not measure or there is no measurement
    yet"""


class SandboxSpecInfo(msgspec.Struct, frozen=True, kw_only=True):
    """SandboxSpecInfo: a template for sandboxes, configured by the operator."""

    id: str
    """Id of the spec; pass it as `sandbox_spec_id`"""
    command: list[str] | None
    """Program and arguments that run in a sandbox; null: the default of the image or the backend"""
    created_at: Time
    initial_env: dict[str, str]
    """Environment variables of a sandbox, by name"""
    working_dir: str
    """Working directory of the command"""


class Ids(msgspec.Struct, frozen=True, kw_only=True):
    """Query of a batch get by ids."""

    ids: Annotated[list[str], stated(maxItems=IDS_MAX)] = msgspec.field(name="id")
    """At most 100 ids. The response has one item per id in the same order, null for an unknown
    id"""


class RoomChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Query option for a start when the limit of running sandboxes is reached."""

    when_full: WhenFull | None = None
    """What to do when the limit of running sandboxes is reached; null or omitted: as the server is
    configured"""


class SpecChoice(RoomChoice, frozen=True, kw_only=True):
    """The spec of a new sandbox, and what to do when the limit of running sandboxes is reached.

    The query and the body have the same fields.
    """

    sandbox_spec_id: str | None = None
    """Id of the spec from `sandbox-specs/search`; null or omitted: the user's default spec,
    otherwise the first spec"""


class SandboxOrder(SpecChoice, frozen=True, kw_only=True):
    """Request for a new sandbox.

    `client_id` and `env` are for servers that run their sandboxes here: repeated requests with the
    same `client_id` return the same sandbox, and `env` extends the environment of its spec.
    """

    client_id: ClientId | None = None
    """Id that the client chose for the sandbox: a repeated request with it returns the existing
    sandbox. Null: every request creates a new sandbox"""
    env: Annotated[dict[EnvName, EnvValue], Meta(max_length=500)] = {}
    """Environment variables by name, in addition to those of the spec; requires a `client_id`"""
    resource_factor: Annotated[int, Meta(ge=1, le=64)] | None = None
    """Factor for the limits of the spec, capped by the server; null: the factor of the user's
    settings, otherwise 1"""


class SandboxChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the deletion of a sandbox."""

    sandbox_id: str | None = None
    """Id of the sandbox; overrides the id in the path. Omitted: the id in the path"""


class SecretName(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value."""

    name: str
    """Name of the secret"""
    description: str | None
    """Description of the secret; null if it has none"""


class SecretNames(msgspec.Struct, frozen=True, kw_only=True):
    """The secrets that a sandbox may read."""

    secrets: list[SecretName]
    """The secrets, without their values"""


def sized(spec: Spec, order: SandboxOrder) -> Spec:
    """Return the spec with the resource factor of the order, if it has one."""
    factor = order.resource_factor
    return spec if factor is None else msgspec.structs.replace(spec, resource_factor=factor)


def to_client_order(order: SandboxOrder) -> ClientOrder | None:
    """Return the client's id and environment; raises BadRequest for `env` without `client_id`."""
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
    """Convert a sandbox to its wire struct, with URLs only while it is running."""
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
        usage=from_usage_sample(measured) if measured else None,
    )


def from_usage_sample(measured: UsageSample) -> UsageView:
    """Convert a measurement to its wire struct."""
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
        # The SDK's cloud workspace rejects an agent server URL with a path.
        return links.agent_at_root(sandbox.id)
    if name == EDITOR_PORT:
        return links.editor(sandbox, sandbox.working_dir) or links.editor_root(sandbox)
    return links.worker(sandbox, name)


PREFIX: Final = "/api/v1/sandboxes"
SPECS_PREFIX: Final = "/api/v1/sandbox-specs"

ROUTES: Final = Routes()


def _answer(request: web.Request, sandbox: Sandbox) -> web.Response:
    return json_response(from_sandbox(sandbox, links_of(request)))


def _with_usage(request: web.Request, sandbox: Sandbox) -> SandboxInfo:
    """Convert a sandbox to its wire struct, with its last measured usage."""
    measured = request.app[SANDBOXES].meter.find(sandbox)
    return from_sandbox(sandbox, links_of(request), measured)


@ROUTES.add("GET", f"{PREFIX}/search", example={"limit": 10})
async def search_sandboxes(request: web.Request, query: PageQuery) -> Page[SandboxInfo]:
    """List your sandboxes, newest first.

    Includes sandboxes that failed.
    """
    found, next_page_id = await request.app[SANDBOXES].search(
        user_of(request), page_id=query.page_id, limit=query.limit
    )
    return Page(items=[_with_usage(request, one) for one in found], next_page_id=next_page_id)


@ROUTES.add("GET", PREFIX, errors=(BadRequest,), example={"id": [EXAMPLE_ID]})
async def get_sandboxes(request: web.Request, query: Ids) -> list[SandboxInfo | None]:
    """Get sandboxes by id.

    The response has one item per `id`, in the same order, null for an unknown id.
    """
    ids = check_ids(query.ids)
    found = await request.app[SANDBOXES].find_many(user_of(request), ids)
    return [_with_usage(request, one) if one else None for one in found]


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

    The sandbox is `STARTING`; poll it until it is `RUNNING` or `ERROR`. The body may be omitted;
    the query overrides it. Repeated requests with the same `client_id` return the same sandbox.
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

    With its last observed status and its last measured usage.
    """
    sandbox = await request.app[SANDBOXES].get(user_of(request), sandbox_id)
    return _with_usage(request, sandbox)


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}/usage", errors=(NotFound,))
async def get_usage(request: web.Request, sandbox_id: str) -> list[UsageView]:
    """List recent measurements of a sandbox's resource usage.

    Up to 240 measurements since the server started, oldest first, one every
    `sandboxes.sweep_seconds`.
    """
    sandboxes = request.app[SANDBOXES]
    sandbox = await sandboxes.get(user_of(request), sandbox_id)
    return [from_usage_sample(one) for one in sandboxes.meter.recent(sandbox)]


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/pause", errors=OF_SANDBOXES)
async def post_pause(request: web.Request, sandbox_id: str) -> Success:
    """Pause a sandbox.

    Depending on its backend it keeps its memory, or only its files (`paused_as`). Pausing a paused
    sandbox has no effect. Its conversations cannot be used until it is resumed.
    """
    await request.app[SANDBOXES].pause(user_of(request), sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/stop", errors=OF_SANDBOXES)
async def post_stop(request: web.Request, sandbox_id: str) -> Success:
    """Stop a sandbox; it keeps only its files, and a resume starts it again.

    A resume runs its command again. Stopping a stopped sandbox has no effect.
    """
    await request.app[SANDBOXES].stop(user_of(request), sandbox_id)
    return SUCCESS


@ROUTES.add("POST", f"{PREFIX}/{{sandbox_id}}/resume", errors=(*OF_SANDBOXES, SandboxLimitReached))
async def post_resume(request: web.Request, sandbox_id: str, query: RoomChoice) -> Success:
    """Resume a sandbox.

    It is `STARTING` at first; read its session key and URLs again when it is `RUNNING`. Resuming a
    running sandbox has no effect.
    """
    conversations, when_full = request.app[CONVERSATIONS], query.when_full
    await conversations.resume(user_of(request), sandbox_id, when_full=when_full)
    return SUCCESS


@ROUTES.add("DELETE", f"{PREFIX}/{{sandbox_id}}", errors=OF_SANDBOXES)
async def delete_sandbox(request: web.Request, query: SandboxChoice) -> Success:
    """Delete a sandbox with all its files.

    The sandbox disappears from the API at once; its backend removes it in the background. This
    cannot be undone. A `sandbox_id` in the query overrides the path, for old clients.
    """
    sandbox_id = query.sandbox_id or path_text(request, "sandbox_id")
    await request.app[SANDBOXES].delete(user_of(request), sandbox_id)
    return SUCCESS


@ROUTES.add("GET", f"{PREFIX}/{{sandbox_id}}/settings/secrets", scope=Scope.SANDBOX)
async def get_secrets(request: web.Request) -> SecretNames:
    """List the names of the secrets that a sandbox may read.

    The secrets of its user, and git provider tokens under names such as `github_token`. The path
    has to name the sandbox of the session key.
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

    The response is the value as plain text. The path has to name the sandbox of the session key.
    """
    secrets = await request.app[CALLBACKS].sandbox_secrets(calling_sandbox(request))
    found = secrets.get(path_text(request, "secret_name"))
    if found is None:
        raise NotFound("Secret not found")
    return text_response(found[1].reveal())


@ROUTES.add("GET", "/api/v1/protection")
async def get_protection(request: web.Request) -> list[Protection]:
    """Get the isolation of sandboxes per backend, default backend first.

    Only administrators see why the isolation of a backend is not stronger, and how to improve it.
    """
    found = find_protections(request.app[BACKENDS], request.app[CONFIG].sandboxes)
    if request[PRINCIPAL].role is not Role.ADMIN:
        found = [msgspec.structs.replace(one, reason="", remedy="") for one in found]
    return found


@ROUTES.add("GET", f"{SPECS_PREFIX}/search", example={"limit": 10})
async def search_sandbox_specs(request: web.Request, query: PageQuery) -> Page[SandboxSpecInfo]:
    """List sandbox specs, default spec first.

    The operator configures the specs.
    """
    return page_at(_specs(request), page_offset(query.page_id), query.limit)


@ROUTES.add("GET", SPECS_PREFIX, errors=(BadRequest,), example={"id": ["process"]})
async def get_sandbox_specs(request: web.Request, query: Ids) -> list[SandboxSpecInfo | None]:
    """Get sandbox specs by id.

    The response has one item per `id`, in the same order, null for an unknown id.
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
    """Return the sandbox of the session key; raises NotAllowed if the path names another one."""
    sandbox = request[SANDBOX]
    if request.match_info.get("sandbox_id", sandbox.id) != sandbox.id:
        raise NotAllowed("Session API key does not match sandbox")
    return sandbox


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """Query for the last lines of a log."""

    tail: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    """Maximum number of lines, from the end of the log"""


class SandboxLog(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of a sandbox's log, oldest first, with secrets masked."""

    lines: list[str]
    """The lines, oldest first; values of secrets are replaced by stars"""


@ROUTES.add(
    "GET",
    f"{PREFIX}/{{sandbox_id}}/logs",
    errors=(NotFound, Unsupported, BackendUnavailable, BackendBroken),
    example={"tail": 50},
)
async def get_logs(request: web.Request, sandbox_id: str, query: Tail) -> SandboxLog:
    """Get the last lines of a sandbox's log.

    The output of its command, and messages of its backend about it. Values of its secrets are
    replaced by stars. Refused (409) if its backend keeps no logs.
    """
    sandboxes = request.app[SANDBOXES]
    sandbox = await sandboxes.get(user_of(request), sandbox_id)
    return SandboxLog(lines=await sandboxes.read_output(sandbox, lines=query.tail))
