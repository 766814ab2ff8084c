"""Sandboxes and sandbox specs on the V1 wire, and their mapping from the core."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.base import (
    BadRequest,
    InvalidRequest,
    Secret,
    ShownSecret,
    copy_to,
    decode_cursor,
    encode_cursor,
    stated,
    to_stored,
)
from agentsvc.domain import WhenFull
from agentsvc.http.port_origins import EDITOR_PORT
from agentsvc.http.urls import Links
from agentsvc.http.wire import ClientId, EnvName, EnvValue, Page, Time
from agentsvc.plugin import Cause, Isolation, PausedAs, Spec
from agentsvc.sandboxes import AGENT_PORT, ClientOrder, Measured, Meter, Sandbox, SandboxStatus

IDS_MAX: Final = 100

_EXPOSED_NAMES: Final = {AGENT_PORT: "AGENT_SERVER"}
_DEFAULT_WORKING_DIR: Final = "/workspace/project"


class ExposedUrl(msgspec.Struct, frozen=True, kw_only=True):
    """Where a client reaches one port of a sandbox."""

    name: str
    """What is there: `AGENT_SERVER`, `VSCODE`, `WORKER_1`, …"""
    url: str
    """Where a client reaches it, through this server"""
    port: int
    """Port it listens on inside the sandbox"""


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """What a sandbox used at a moment; null is not known.

    `cpu_seconds` counts from when its command was last started.
    """

    cpu_seconds: float | None
    """Seconds of processor time since its command was last started; null: not known"""
    memory_bytes: int | None
    """Bytes of memory in use; null: not known"""
    processes: int | None
    """Number of processes and threads; null: not known"""
    disk_bytes: int | None
    """Bytes its files take on the disk, as they were last counted; null: not known"""
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
    resume brings a new one. Null if it has failed or is gone"""
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


def from_sandbox(sandbox: Sandbox, links: Links, measured: Measured | None = None) -> SandboxInfo:
    """Return a sandbox as clients see it; its URLs are shown only while it runs."""
    is_running = sandbox.status is SandboxStatus.RUNNING
    is_dead = sandbox.status in (SandboxStatus.ERROR, SandboxStatus.MISSING)
    return copy_to(
        SandboxInfo,
        sandbox,
        created_by_user_id=None,
        sandbox_spec_id=sandbox.spec_id,
        session_api_key=None if is_dead else links.shown(sandbox.session_key),
        exposed_urls=_expose(sandbox, links) if is_running else None,
        created_at=to_stored(sandbox.created_at),
        status_detail=sandbox.reason or None,
        status_cause=sandbox.cause,
        enforced_limits=list(sandbox.enforced),
        working_dir=sandbox.working_dir or None,
        usage=from_measured(measured) if measured else None,
    )


def from_sandboxes(
    sandboxes: Sequence[Sandbox | None], links: Links, meter: Meter
) -> list[SandboxInfo | None]:
    """Return sandboxes as clients see them, null for each unknown one."""
    return [from_sandbox(one, links, meter.find(one)) if one else None for one in sandboxes]


def from_measured(measured: Measured) -> UsageView:
    """Return a measurement as clients see it."""
    return UsageView(
        cpu_seconds=measured.usage.cpu_seconds,
        memory_bytes=measured.usage.memory_bytes,
        processes=measured.usage.processes,
        disk_bytes=measured.usage.disk_bytes,
        measured_at=to_stored(measured.at),
    )


def from_spec(spec: Spec, created_at: datetime) -> SandboxSpecInfo:
    """Return a template as clients see it."""
    return SandboxSpecInfo(
        id=spec.id,
        command=list(spec.command) if spec.command is not None else None,
        created_at=to_stored(created_at),
        initial_env=spec.env,
        working_dir=spec.working_dir or _DEFAULT_WORKING_DIR,
    )


def page_of_specs(
    specs: Sequence[Spec], created_at: datetime, *, page_id: str | None, limit: int
) -> Page[SandboxSpecInfo]:
    """Return the page of templates after the one the page id names; raises InvalidRequest."""
    rest = list(specs)
    if page_id is not None:
        (last,) = decode_cursor(page_id, str)
        ids = [spec.id for spec in specs]
        if last not in ids:
            raise InvalidRequest("page_id is not one this server gave", loc=("query", "page_id"))
        rest = rest[ids.index(last) + 1 :]
    page = rest[:limit]
    return Page(
        items=[from_spec(spec, created_at) for spec in page],
        next_page_id=encode_cursor(page[-1].id) if len(rest) > limit else None,
    )


def find_specs(
    specs: Sequence[Spec], ids: Sequence[str], created_at: datetime
) -> list[SandboxSpecInfo | None]:
    """Return the named templates in the order of the ids, null for each unknown one."""
    known = {spec.id: from_spec(spec, created_at) for spec in specs}
    return [known.get(spec_id) for spec_id in ids]


def _expose(sandbox: Sandbox, links: Links) -> list[ExposedUrl]:
    return [
        ExposedUrl(
            name=_EXPOSED_NAMES.get(end.name, end.name.upper()),
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
