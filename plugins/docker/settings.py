"""The `[backends.docker]` table: the engines and their settings."""

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
"""Prefix length of a sandbox's subnet: room for the bridge, the sandbox and its gateway."""

type Positive = Annotated[float, msgspec.Meta(gt=0)]
type Url = Annotated[str, msgspec.Meta(pattern=r"^((unix|tcp|http|https|ssh)://[^\s]+)?$")]
type Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")]


class Host(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine: an entry of `hosts`, or the table itself if there is only one."""

    name: Name = "default"
    """Name by which its sandboxes refer to it; it must not change while they exist."""
    host: Url = ""
    """unix://PATH, tcp://ADDRESS:PORT, https://… or ssh://USER@ADDRESS; empty for DOCKER_HOST, or
    otherwise the first socket found."""
    tls_dir: str = ""
    """Directory with ca.pem, cert.pem and key.pem for tcp:// and https://; empty for
    DOCKER_CERT_PATH if DOCKER_TLS_VERIFY is set, otherwise no certificates."""
    publish: str = ""
    """Address at which ports are published and reached; empty for the containers' own addresses if
    this server runs on the engine's machine, otherwise loopback."""
    labels: dict[str, str] = {}
    """Labels that a spec may require with its option `host_labels`."""
    max_sandboxes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Maximum number of sandboxes; 0 for no limit."""


class DockerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[backends.docker]` table."""

    host: Url = ""
    tls_dir: str = ""
    publish: str = ""
    hosts: tuple[Host, ...] = ()
    """Several engines as one; then `host`, `tls_dir` and `publish` above stay empty."""
    pull: Literal["missing", "always", "never"] = "missing"
    """When images are pulled."""
    auth_file: str = ""
    """File with registry logins as `docker login` writes it; empty for none."""
    runtime: str = ""
    """OCI runtime by name, such as runsc for gVisor; empty for the engine's default."""
    user: str = ""
    """User and group as numbers; empty for the image's own, or 1000:1000 if that is root."""
    bind_mounts: tuple[str, ...] = ()
    """Directories of the engine's machine below which specs may mount directories."""
    subnets: str = "10.213.0.0/16"
    """The address range from which each sandbox's network gets a small subnet."""
    guard_host: bool = True
    """Close this machine's ports to sandboxes with an open network, if the server is root on the
    machine of a Docker engine."""
    gateway_image: str = ""
    """Image with Python 3.12 or newer for gateway containers; empty for the sandbox's own."""
    callback: Url = ""
    """URL at which sandboxes reach this server; empty for its port on the engine's machine."""
    connect_seconds: Positive = 0.5
    """Timeout of one attempt to connect to a port."""
    request_seconds: Positive = 30.0
    """Timeout of a request to the engine."""
    pull_wait_seconds: Positive = 5.0
    """How long a start waits for an image before it reports the progress."""
    stop_seconds: Annotated[int, msgspec.Meta(ge=0)] = 3
    """Grace period for a sandbox to end by itself if it is stopped, or cannot be frozen."""


def engines(config: DockerConfig) -> tuple[Host, ...]:
    """Return the configured engines; raises StartFailed for an invalid configuration."""
    try:
        whole = ipaddress.IPv4Network(config.subnets)
    except ValueError as exc:
        raise StartFailed(f"`subnets` of a docker backend is not a valid network: {exc}") from exc
    if whole.prefixlen > SUBNET_BITS:
        raise StartFailed(f"`subnets` of a docker backend is smaller than a subnet, /{SUBNET_BITS}")
    if not config.hosts:
        return (Host(host=config.host, tls_dir=config.tls_dir, publish=config.publish),)
    if config.host or config.tls_dir or config.publish:
        raise StartFailed("`hosts` cannot be combined with `host`, `tls_dir` or `publish`")
    names = [host.name for host in config.hosts]
    if len(set(names)) != len(names):
        raise StartFailed("Two entries of `hosts` of a docker backend have the same name")
    return config.hosts


def resolve_url(host: Host, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of an engine's API, by default from the environment or a usual socket."""
    if url := host.host or environment.get("DOCKER_HOST", ""):
        return url
    own = environment.get("XDG_RUNTIME_DIR", "")
    usual = [*_SOCKETS, *([f"{own}/docker.sock", f"{own}/podman/podman.sock"] if own else [])]
    return "unix://" + next((path for path in usual if Path(path).is_socket()), usual[0])


def resolve_tls_dir(host: Host, environment: Mapping[str, str] = os.environ) -> str:
    """Return the directory of an engine's certificates, or an empty string."""
    if host.tls_dir or host.host:
        return host.tls_dir
    if not environment.get("DOCKER_TLS_VERIFY"):
        return ""
    return environment.get("DOCKER_CERT_PATH") or str(Path.home() / ".docker")


def address_of(url: str) -> str:
    """Return the host of an engine's URL; empty for this machine."""
    return (urlsplit(url).hostname or "") if not re.match(r"unix:", url) else ""
