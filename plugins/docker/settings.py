"""The `[backends.docker]` table: which engines there are, and how they are used."""

import ipaddress
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

import msgspec

from agentsvc.base import StartFailed

_SOCKETS: Final = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")

SUBNET_BITS: Final = 29
"""Of a sandbox's part of `subnets`: room for the bridge, the sandbox and its gateway."""

type Positive = Annotated[float, msgspec.Meta(gt=0)]
type Url = Annotated[str, msgspec.Meta(pattern=r"^((unix|tcp|http|https|ssh)://[^\s]+)?$")]
type Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine: an entry of `hosts`, or what the table itself says when there is only one."""

    name: Name = "default"
    """What its sandboxes remember it by; it must not change while they exist."""
    host: Url = ""
    """unix://PATH, tcp://ADDRESS:PORT, https://… or ssh://USER@ADDRESS; empty for DOCKER_HOST,
    or else the first socket found."""
    tls_dir: str = ""
    """Directory with ca.pem, cert.pem and key.pem for tcp:// and https://; empty for
    DOCKER_CERT_PATH where DOCKER_TLS_VERIFY is set, else no certificates."""
    publish: str = ""
    """Address at which ports are published and reached; empty for the containers' own addresses
    where this server runs beside the engine, else loopback."""
    labels: dict[str, str] = {}
    """What a spec may ask for by its option `host_labels`."""
    max_sandboxes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many sandboxes it takes; 0 for as many as come."""


class DockerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.docker]` table."""

    host: Url = ""
    tls_dir: str = ""
    publish: str = ""
    hosts: tuple[Host, ...] = ()
    """Several engines as one; then `host`, `tls_dir` and `publish` above stay empty."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When images are fetched."""
    auth_file: str = ""
    """File with registry logins as `docker login` writes it; empty for none."""
    runtime: str = ""
    """OCI runtime by name, such as runsc for gVisor; empty for the engine's default."""
    user: str = ""
    """User and group as numbers; empty for the image's own, or 1000:1000 where that is root."""
    bind_mounts: tuple[str, ...] = ()
    """Directories of the engine's machine below which specs may mount something."""
    subnets: str = "10.213.0.0/16"
    """The addresses from which each sandbox's network gets a small part."""
    guard_host: bool = True
    """Close this machine's ports to sandboxes with an open network, where the server is root
    beside a Docker engine."""
    gateway_image: str = ""
    """Image with a python3 of 3.12 or newer for gateway containers; empty for the sandbox's own."""
    callback: Url = ""
    """URL at which sandboxes reach this server; empty for its port on the engine's machine."""
    connect_seconds: Positive = 0.5
    """How long one attempt to reach a port may take."""
    request_seconds: Positive = 30.0
    """How long the engine may take to answer."""
    pull_wait_seconds: Positive = 5.0
    """How long a start waits for an image before it tells how far it has come."""
    stop_seconds: Annotated[int, msgspec.Meta(ge=0)] = 3
    """How long a sandbox has to end by itself where it cannot be frozen."""


def engines(config: DockerConfig) -> tuple[Host, ...]:
    """Return the engines a table means; raises StartFailed where it makes no sense."""
    try:
        whole = ipaddress.IPv4Network(config.subnets)
    except ValueError as exc:
        raise StartFailed(f"`subnets` of a docker backend is no network: {exc}") from exc
    if whole.prefixlen > SUBNET_BITS:
        raise StartFailed(f"`subnets` of a docker backend is smaller than one part, /{SUBNET_BITS}")
    if not config.hosts:
        return (Host(host=config.host, tls_dir=config.tls_dir, publish=config.publish),)
    if config.host or config.tls_dir or config.publish:
        raise StartFailed("`hosts` and `host`, `tls_dir` or `publish` exclude each other")
    names = [host.name for host in config.hosts]
    if len(set(names)) != len(names):
        raise StartFailed("Two entries of `hosts` of a docker backend have the same name")
    return config.hosts


def resolve_url(host: Host, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of an engine's API, from the environment or the usual sockets if need be."""
    if url := host.host or environment.get("DOCKER_HOST", ""):
        return url
    own = environment.get("XDG_RUNTIME_DIR", "")
    usual = [*_SOCKETS, *([f"{own}/docker.sock", f"{own}/podman/podman.sock"] if own else [])]
    return "unix://" + next((path for path in usual if Path(path).is_socket()), usual[0])


def resolve_tls_dir(host: Host, environment: Mapping[str, str] = os.environ) -> str:
    """Return the directory of an engine's certificates, or an empty text."""
    if host.tls_dir or host.host:
        return host.tls_dir
    if not environment.get("DOCKER_TLS_VERIFY"):
        return ""
    return environment.get("DOCKER_CERT_PATH") or str(Path.home() / ".docker")


def address_of(url: str) -> str:
    """Return the name or address of the machine an engine's URL leads to; empty for this one."""
    return (urlsplit(url).hostname or "") if not re.match(r"unix:", url) else ""
