"""Checks of the machine itself: Python, packages, isolation, port, disk space, permissions."""

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import StartFailed, known_vulnerabilities
from agentsvc.cli.doctor.finding import Finding, bad, fine, note
from agentsvc.cli.listener import bind, url_of
from agentsvc.cli.plugins import load_plugins, opened
from agentsvc.config import Config, DataDirectory
from agentsvc.plugin import Health
from agentsvc.sandboxes import Protection, find_protections

_OLDEST_PYTHON: Final = (3, 12)
_TOO_NEW_PYTHON: Final = (3, 14)
_EXTRAS: Final = {
    "agent": ("openhands-agent-server", "sandboxes of this machine cannot run agents"),
    "docker": ("aiodocker", "sandboxes cannot be containers"),
    "kubernetes": ("kubernetes-asyncio", "sandboxes cannot be pods"),
    "otel": ("opentelemetry-exporter-otlp-proto-http", "no traces are sent"),
    "cli": ("rich", "commands show no colour"),
}
_GROUPS: Final = Path("/sys/fs/cgroup")
_CONTROLLERS: Final = frozenset({"cpu", "memory", "pids"})
_SOCKETS: Final = ("/run/docker.sock", "/var/run/docker.sock", "/run/podman/podman.sock")
_LEAST_BYTES: Final = 1 << 30
_FEW_BYTES: Final = 5 << 30
_ANSWER_SECONDS: Final = 5.0


def check_python(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check the version of Python."""
    version = ".".join(map(str, sys.version_info[:3]))
    if _OLDEST_PYTHON <= sys.version_info[:2] < _TOO_NEW_PYTHON:
        yield fine("python", f"{version}, {sys.executable}")
    else:
        yield bad("python", f"{version} is not supported", "install it with Python 3.12 or 3.13")
    for one in known_vulnerabilities():
        fixed = ".".join(map(str, one.fixed[sys.version_info[:2]]))
        text = f"{version} has {one.cve}, unless its distributor has patched it: {one.matters}"
        yield note("python", text, f"update Python to {fixed} or later")


def check_extras(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check which extras are installed."""
    for extra, (package, consequence) in _EXTRAS.items():
        try:
            yield fine(f"extra {extra}", f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            yield note(f"extra {extra}", consequence, f"pip install 'agentsvc[{extra}]'")


def check_isolation(config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that each backend in use provides its default isolation and the configured limits."""
    try:
        found, health_of, blocked = asyncio.run(_protections(config))
    except StartFailed as exc:
        yield bad("isolation", exc.message, exc.hint or "agentsvc plugins list")
        return
    if not found:
        yield note("isolation", "no backend in use can be reached", "agentsvc plugins list")
    for one in found:
        yield _isolation(one)
        if one.not_limited:
            text = f"default limits not enforced: {', '.join(one.not_limited)}"
            remedy = "run the server as root, or as a systemd service with Delegate=yes"
            yield note(f"limits of `{one.backend}`", text, remedy)
        else:
            yield fine(f"limits of `{one.backend}`", ", ".join(one.limits) or "none configured")
    for backend, (no_swap, no_disk) in blocked.items():
        yield from _paused_memory(config, backend, no_swap, no_disk)
    for backend, health in health_of.items():
        for advice in health.advice:
            yield note(f"{advice.subject} of `{backend}`", advice.text, advice.remedy)


async def _protections(
    config: Config,
) -> tuple[list[Protection], Mapping[str, Health], Mapping[str, tuple[str, str]]]:
    """Return protections, health by backend, and by backend why it cannot reclaim or hibernate."""
    config = _with_internal_url(config)
    async with opened(load_plugins(config), config) as registry:
        health_of = await registry.probe()
        backends = [(name, registry.get(name)) for name in health_of]
        blocked = {name: (it.why_no_reclaim(), it.why_no_hibernate()) for name, it in backends}
        return find_protections(registry, config.sandboxes), health_of, blocked


def _with_internal_url(config: Config) -> Config:
    """Return the configuration with the internal URL that a server would use, if it can be derived."""
    url, server = config.server.internal_url, config.server
    # Bind to port 0, because the configured port may be in use by the server itself.
    with contextlib.suppress(StartFailed), bind(server.host, 0) as listener:
        url = url or f"{url_of(listener).rpartition(':')[0]}:{server.port}"
    server = msgspec.structs.replace(server, internal_url=url)
    return msgspec.structs.replace(config, server=server)


def _paused_memory(config: Config, backend: str, no_swap: str, no_disk: str) -> Iterator[Finding]:
    """Yield the configured idle rules that a backend cannot apply to memory, and why."""
    name = f"paused memory of `{backend}`"
    if config.sandboxes.reclaim_after_seconds and no_swap:
        text = f"`sandboxes.reclaim_after_seconds` only pauses: {no_swap}"
        yield note(name, text, "set `pause_after_seconds`")
    if config.sandboxes.hibernate_after_seconds and no_disk:
        instead = "pauses" if no_swap else "moves memory to swap"
        text = f"`sandboxes.hibernate_after_seconds` only {instead}: {no_disk}"
        yield note(name, text, "read docs/how-to/idle.md")


def _isolation(one: Protection) -> Finding:
    name = f"isolation of `{one.backend}`"
    if not one.is_below_default:
        return fine(name, one.isolation)
    why = f": {one.reason}" if one.reason else ""
    text = f"sandboxes have `{one.isolation}` instead of `{one.default_isolation}`{why}"
    return bad(name, text, one.remedy)


def check_cgroups(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that limits of memory, processor time and processes can be enforced."""
    own = _own_group()
    if own is None:
        text = "cgroups v2 are not available, so limits of sandboxes may not be enforced"
        yield note("cgroups", text, "boot with systemd.unified_cgroup_hierarchy=1")
        return
    try:
        known = frozenset((own / "cgroup.controllers").read_text().split())
    except OSError:
        known = frozenset()
    remedy = "run the server as a systemd service with Delegate=yes"
    if not os.access(own, os.W_OK):
        text = f"{own} is not writable, so limits of sandboxes are not enforced"
        yield note("cgroups", text, remedy)
    elif missing := _CONTROLLERS - known:
        text = f"{own} has no controller for: {', '.join(sorted(missing))}"
        yield note("cgroups", text, remedy)
    else:
        yield fine("cgroups", str(own))


def check_engine(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that a container engine responds."""
    named = os.environ.get("DOCKER_HOST", "")
    if named and not named.startswith("unix://"):
        yield note("container engine", f"DOCKER_HOST is {named}, which is not checked")
        return
    found = next((path for path in _SOCKETS if Path(path).exists()), "")
    path = named.removeprefix("unix://") or found
    if not path:
        remedy = "apt-get install docker.io, or do without: sandboxes are then processes"
        yield note("container engine", "none found", remedy)
        return
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(path)
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            is_good = connection.recv(64).split(b" ")[1:2] == [b"200"]
    except PermissionError:
        user = _user_name()
        remedy = f"usermod -aG docker {user}, then log in again"
        yield note("container engine", f"this user may not open {path}", remedy)
    except OSError as exc:
        yield note("container engine", f"{path} does not respond: {exc}", "systemctl start docker")
    else:
        text = f"{path} responds" if is_good else f"{path} is not a container engine"
        yield fine("container engine", text) if is_good else note("container engine", text)


def check_port(config: Config, data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that the server's port is free, or used by the server itself."""
    host, port = config.server.host, config.server.port
    if data_directory.is_in_use():
        yield fine("port", "a server runs on the data directory")
        return
    try:
        bind(host, port).close()
    except StartFailed as exc:
        yield bad("port", exc.message, f"agentsvc serve --port {port % 65535 + 1}")
    else:
        yield fine("port", f"{host}:{port} is free")


def check_disk(_config: Config, data_directory: DataDirectory) -> Iterator[Finding]:
    """Check the free disk space."""
    usage = shutil.disk_usage(_existing(data_directory.path))
    text = f"{usage.free / (1 << 30):.1f} GiB free for {data_directory.path}"
    remedy = "agentsvc prune --sandboxes-idle-for 4w --dry-run"
    if usage.free < _LEAST_BYTES:
        yield bad("disk", text, remedy)
    elif usage.free < _FEW_BYTES:
        yield note("disk", text, remedy)
    else:
        yield fine("disk", text)


def check_permissions(_config: Config, data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that the data directory belongs to this user and is not accessible to others."""
    path = data_directory.path
    if not path.exists():
        parent = _existing(path)
        if os.access(parent, os.W_OK | os.X_OK):
            yield fine("data directory", f"{path} will be created at the first start")
        else:
            remedy = "choose another directory with --data-dir"
            yield bad("data directory", f"{path} cannot be created in {parent}", remedy)
        return
    shown = shlex.quote(str(path))
    if path.stat().st_uid != os.getuid():
        text = f"{path} belongs to another user"
        yield bad("data directory", text, f"chown -R {_user_name()} {shown}")
        return
    checked = (path, data_directory.master_key, data_directory.database, data_directory.command_key)
    for file in checked:
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield bad("data directory", f"other users can read {file}", f"chmod -R go= {shown}")
            return
    yield fine("data directory", str(path))


def _own_group() -> Path | None:
    """Return the directory of this process's cgroup v2, or None."""
    try:
        lines = Path("/proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    names = [line.removeprefix("0::") for line in lines if line.startswith("0::")]
    group = _GROUPS / names[0].lstrip("/") if names else None
    return group if group is not None and (group / "cgroup.controllers").exists() else None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _user_name() -> str:
    return os.environ.get("USER") or str(os.getuid())
