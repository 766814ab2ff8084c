"""Validates an order, and derives the options, variables and resources of its pod. Pure."""

import posixpath
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import OrderRejected
from agentsvc.plugin import Isolation, Network, Order, Spec, choose_ports, fill, working_dir

from .settings import KubernetesConfig, Name, Toleration

type Json = dict[str, Any]
type OptionalQuantity = Annotated[
    str, msgspec.Meta(pattern=r"^([0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?)?$")
]

WORKSPACE: Final = "/workspace"
PROXY_PORT: Final = 3128
LIMITS: Final = ("cpus", "memory_bytes", "disk_bytes")
"""The limits of an order that a pod or a claim can have."""

_CALLBACK_VARIABLE: Final = "OH_WEBHOOKS_0_BASE_URL"
_ID: Final = re.compile(r"[a-z0-9]{3,32}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "")  # noqa: S104  # recognised only
_GVISOR: Final = re.compile(r"runsc|gvisor", re.IGNORECASE)
_VM: Final = re.compile(r"kata|firecracker", re.IGNORECASE)
_ENV_BYTES_MAX: Final = 128 * 1024
_SECRET_BYTES_MAX: Final = 900 * 1024
_QUANTITY: Final = re.compile(r"([0-9.]+)(m|[kMGTPE]|[KMGTPE]i)?")
_POWERS: Final = "kmgtpe"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `options` of a spec for this backend."""

    service_account: Name = ""
    image_pull_secrets: tuple[Name, ...] = ()
    """In addition to those of the backend's table."""
    node_selector: dict[str, str] = {}
    """In addition to that of the backend's table."""
    tolerations: tuple[Toleration, ...] = ()
    """In addition to those of the backend's table."""
    runtime_class: Name = ""
    priority_class: Name = ""
    user: Annotated[str, msgspec.Meta(pattern=r"^([1-9][0-9]*(:[1-9][0-9]*)?)?$")] = ""
    cpu_request: OptionalQuantity = ""
    memory_request: OptionalQuantity = ""
    storage_class: str = ""
    storage_size: OptionalQuantity = ""
    read_only: bool = False
    """Whether only the workspace, /tmp and /dev/shm are writable."""
    workspace: Annotated[str, msgspec.Meta(pattern=r"^/[A-Za-z0-9_./-]+$")] = WORKSPACE
    """Directory at which the claim with the sandbox's files is mounted."""
    shm_bytes: Annotated[int, msgspec.Meta(ge=65536)] = 256 * 1024 * 1024
    """Size of /dev/shm, which browsers need."""


def to_options(asked: Spec | Order) -> Options:
    """Return the parsed options; raises OrderRejected if they are invalid."""
    try:
        return msgspec.convert(asked.options, Options)
    except msgspec.ValidationError as exc:
        raise OrderRejected(f"The options do not fit: {exc}") from exc


def check(asked: Spec | Order) -> None:
    """Raise OrderRejected for a spec or an order that could never be created."""
    options = to_options(asked)
    if not asked.image:
        raise OrderRejected("A kubernetes sandbox needs an image")
    ports = choose_ports(asked.ports)
    for text in (*(asked.command or ()), *asked.env.values()):
        fill(text, ports)
    working_dir(asked.working_dir, options.workspace)
    _check_sizes(asked, options)
    if isinstance(asked, Order):
        check_id(asked.sandbox_id)
        _check_names(asked.secret_env)
        _check_bytes(asked)
    _check_names(asked.env)


def check_id(text: str) -> None:
    """Raise OrderRejected for an id that cannot be part of an object's name."""
    if not _ID.fullmatch(text):
        raise OrderRejected("The id cannot be part of the name of an object")


def _check_names(variables: Iterable[str]) -> None:
    if bad := [name for name in variables if not _VARIABLE.fullmatch(name)]:
        raise OrderRejected(f"`{bad[0]}` cannot be the name of a variable")


def _check_sizes(asked: Spec | Order, options: Options) -> None:
    for name, value in options.node_selector.items():
        if value and not _LABEL.fullmatch(value):
            raise OrderRejected(f"`{value}` in `node_selector` cannot be the label `{name}`")
    if asked.limits.cpus is not None and asked.limits.cpus < 0.001:  # noqa: PLR2004
        raise OrderRejected("The limit `cpus` is less than a thousandth")


def _check_bytes(order: Order) -> None:
    if sum(len(name) + len(value) for name, value in order.env.items()) > _ENV_BYTES_MAX:
        raise OrderRejected("The environment is larger than a cluster keeps it")
    secret = sum(
        len(name) + len(value.reveal().encode()) for name, value in order.secret_env.items()
    )
    if secret > _SECRET_BYTES_MAX:
        raise OrderRejected("The secrets are larger than a cluster keeps them")


def user_of(options: Options, config: KubernetesConfig) -> tuple[int, int]:
    """Return the numeric ids of the user and the group that a sandbox runs as."""
    user, _, group = (options.user or config.user).partition(":")
    return int(user), int(group or user)


def runtime_of(options: Options, config: KubernetesConfig) -> str:
    """Return the name of the RuntimeClass, or an empty text for the cluster's default."""
    return options.runtime_class or config.runtime_class


def isolation_of(runtime_class: str) -> Isolation:
    """Return the isolation of pods with a RuntimeClass, as its name suggests."""
    if _GVISOR.search(runtime_class):
        return Isolation.GVISOR
    return Isolation.VM if _VM.search(runtime_class) else Isolation.CONTAINER


def literal(text: str) -> str:
    """Escape a text for the kubelet, which would expand `$(NAME)`."""
    return text.replace("$", "$$")


def callback_of(env: Mapping[str, str]) -> tuple[str, int] | None:
    """Return the host and port of a sandbox's callback URL; None if it is missing or loopback."""
    url = urlsplit(env.get(_CALLBACK_VARIABLE, ""))
    if is_loopback(url.hostname or ""):
        return None
    return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address, the unspecified IPv4 address or empty."""
    return host in _LOOPBACK


def environment_of(order: Order, options: Options, proxy_url: str) -> dict[str, str]:
    """Return the variables that are not secret, including those for the proxy."""
    ports = choose_ports(order.ports)
    env = {name: fill(value, ports) for name, value in order.env.items()}
    if options.read_only:
        env.setdefault("HOME", f"{posixpath.normpath(options.workspace)}/.home")
    if not proxy_url:
        return env
    proxy = {
        "HTTP_PROXY": proxy_url,
        "HTTPS_PROXY": proxy_url,
        "NO_PROXY": "localhost,127.0.0.1,::1",
    }
    return {**proxy, **{name.lower(): value for name, value in proxy.items()}, **env}


def resources_of(order: Order, options: Options, config: KubernetesConfig) -> Json:
    """Return a container's resource limits, and its requests, which the limits cap."""
    limits: dict[str, str] = {}
    if order.limits.cpus is not None:
        limits["cpu"] = f"{round(order.limits.cpus * 1000)}m"
    if order.limits.memory_bytes is not None:
        limits["memory"] = str(order.limits.memory_bytes)
    requests = {
        "cpu": options.cpu_request or config.cpu_request,
        "memory": options.memory_request or config.memory_request,
    }
    capped = {name: _lesser(value, limits.get(name)) for name, value in requests.items()}
    return {"requests": capped, **({"limits": limits} if limits else {})}


def set_limits(order: Order) -> list[str]:
    """Return the names of the limits that an order sets."""
    limits = msgspec.structs.asdict(order.limits)
    return [name for name, value in limits.items() if value is not None]


def needs_gateway(network: Network) -> bool:
    """Return whether sandboxes with this network connect through a gateway only."""
    return network is not Network.OPEN


def _lesser(value: str, limit: str | None) -> str:
    return value if limit is None or amount(value) <= amount(limit) else limit


def amount(quantity: str) -> float:
    """Return the value of a Kubernetes quantity such as `10Gi`; raises OrderRejected if invalid."""
    match = _QUANTITY.fullmatch(quantity)
    if match is None:
        raise OrderRejected(f"`{quantity}` is no quantity")
    number, unit = float(match.group(1)), match.group(2) or ""
    if unit == "m":
        return number / 1000
    base = 1024 if unit.endswith("i") else 1000
    return number * base ** (_POWERS.index(unit[0].lower()) + 1) if unit else number
