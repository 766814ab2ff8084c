"""The wire structs of the remote runtime API, and their mapping from the core."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.base import BadRequest, Secret, ShownSecret, to_stored
from agentsvc.extension.server import ClientOrder, Sandbox, SandboxStatus
from agentsvc.extension.web import ClientId, EnvName, EnvValue, Links, Time
from agentsvc.plugin import Isolation, Spec

IDS_MAX: Final = 100

type Factor = Annotated[int, Meta(ge=1, le=64)]
type Text = Annotated[str, Meta(max_length=1024)]


class RuntimeStatus(StrEnum):
    """What a runtime does."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"
    STARTING = "starting"
    ERROR = "error"


class PodStatus(StrEnum):
    """What holds a runtime, in the words of the service this API comes from."""

    READY = "ready"
    PENDING = "pending"
    FAILED = "failed"
    NOT_FOUND = "not found"


class RuntimeStart(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be started. The image names a spec, and the spec says what runs and how.

    Command, directory, users and class of the runtime are read and left to the spec.
    """

    image: Text
    """Image, or id of a spec; the spec of that id or image is followed, else the one the operator
    names for all others"""
    session_id: ClientId
    """What the caller calls the sandbox: a start with the same one gives the runtime there is"""
    environment: Annotated[dict[EnvName, EnvValue], Meta(max_length=500)] = {}
    """Environment variables by name, beside those of the spec"""
    resource_factor: Factor = 1
    """How many times the limits of the spec it gets, as far as the server allows"""
    command: Text | Annotated[list[Text], Meta(max_length=100)] | None = None
    """Read, and left to the spec; null: not said"""
    working_dir: Text | None = None
    """Read, and left to the spec; null: not said"""
    runtime_class: Text | None = None
    """Read, and left to the spec; null: not said"""


class RuntimeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The runtime that something is to be done with."""

    runtime_id: Annotated[str, Meta(min_length=1, max_length=128)]
    """Id of the runtime, as a start has answered it"""


class SessionIds(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a batch get."""

    ids: list[str] = []
    """At most 100 session ids; unknown ones are left out of the answer"""


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime. What follows `restart_reasons` is this server's own.

    `ports_need_key` says that what is at `url` and `port_urls` wants the session key in
    X-Session-API-Key, and takes it out of the request.
    """

    runtime_id: str
    """Id of the runtime, which is that of a sandbox"""
    session_id: str
    """What the caller calls it"""
    session_api_key: ShownSecret
    """Key of what runs in it, sent as `X-Session-API-Key`; empty if it has none"""
    url: str
    """Where its agent server is reached, through this server"""
    status: RuntimeStatus
    """What it does"""
    pod_status: PodStatus
    """How far what holds it is"""
    work_hosts: dict[str, int]
    """Always empty: `port_urls` says where its ports are"""
    image: str
    """Image of its spec, or the id of a spec without one"""
    restart_count: int
    """Always 0: what has failed is not started again"""
    restart_reasons: list[str]
    """Always empty"""
    created_at: Time
    working_dir: str | None
    """Directory its command works in, as it is called inside; null until it is known"""
    exit_code: int | None
    """With what its command has ended; null while it runs, and after a signal"""
    detail: str | None
    """Why it is as it is, for people; null if there is nothing to say"""
    isolation: Isolation | None
    """How far it is kept from everything else; null until that is known"""
    ports_need_key: bool
    """Always true: what is at `url` and `port_urls` wants the session key in `X-Session-API-Key`,
    which does not reach the program behind it"""
    port_urls: dict[str, str]
    """Where each of its ports is reached, by the name of the port"""


class RuntimeList(msgspec.Struct, frozen=True, kw_only=True):
    """The runtimes that run or are about to."""

    runtimes: list[Runtime]
    """The runtimes"""


class RuntimeDone(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a service that has done as it was told."""

    status: str = "ok"
    """Always `ok`"""


DONE: Final = RuntimeDone()

_SHOWN: Final[Mapping[SandboxStatus, tuple[RuntimeStatus, PodStatus]]] = {
    SandboxStatus.STARTING: (RuntimeStatus.STARTING, PodStatus.PENDING),
    SandboxStatus.RUNNING: (RuntimeStatus.RUNNING, PodStatus.READY),
    SandboxStatus.PAUSED: (RuntimeStatus.PAUSED, PodStatus.NOT_FOUND),
    SandboxStatus.ERROR: (RuntimeStatus.ERROR, PodStatus.FAILED),
    SandboxStatus.MISSING: (RuntimeStatus.STOPPED, PodStatus.NOT_FOUND),
}


def check_ids(ids: Sequence[str]) -> Sequence[str]:
    """Return the ids of a batch get; raises BadRequest for too many."""
    if len(ids) > IDS_MAX:
        raise BadRequest(f"Too many ids requested. Maximum is {IDS_MAX}.")
    return ids


def choose_spec(specs: Sequence[Spec], image: str, *, fallback: str) -> Spec:
    """Return the spec an image stands for, else the fallback; raises BadRequest without one."""
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


def to_client_order(start: RuntimeStart) -> ClientOrder:
    """Return what the caller says of the sandbox besides its spec."""
    env = {name: Secret(value) for name, value in start.environment.items()}
    return ClientOrder(id=start.session_id, env=env)


def from_sandbox(sandbox: Sandbox, links: Links, *, at_root: bool) -> Runtime:
    """Return a sandbox as a runtime, whose URL has no path if it is to be at the root."""
    status, pod_status = _SHOWN[sandbox.status]
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
