"""Handlers for operators: liveness, readiness, server information."""

import asyncio
import logging
import os
import resource
import shutil
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc import __version__
from agentsvc.accounts import Role
from agentsvc.base import AgentsvcError, BackendUnavailable, copy_to
from agentsvc.http.keys import BACKENDS, CONFIG, DATABASE
from agentsvc.http.middleware.authentication import find_caller
from agentsvc.http.middleware.pipeline import ACTIVITY, Activity
from agentsvc.http.routes import Routes, Scope
from agentsvc.plugin import Health, RuntimeBackend
from agentsvc.sandboxes import BackendRegistry, Protection, find_protections

INTERFACE_VERSION: Final = "1.58.0"
"""The agent server version whose interface this server implements: the `agent` extra's."""

log = logging.getLogger(__name__)

_PROC: Final = Path("/proc")


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `/alive`."""

    status: str = "ok"
    """Always `ok`"""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory use of the server process, in bytes and as a share of the machine's memory."""

    rss: int
    """Resident set size in bytes"""
    vms: int
    """Virtual memory size in bytes"""
    percent: float
    """Resident set size in percent of the machine's memory"""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of the file system of the working directory, in bytes."""

    total: int
    """Size of the file system in bytes"""
    used: int
    """Bytes in use"""
    free: int
    """Bytes available to the server"""
    percent: float
    """Used space in percent of the size"""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Disk I/O of the server process since its start, in bytes."""

    read_bytes: int
    """Bytes read from disks since the start"""
    write_bytes: int
    """Bytes written to disks since the start"""


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """Resource use of the server process; the CPU figure is the mean since its start."""

    cpu_percent: float
    """Mean CPU use since the start, in percent of one processor"""
    memory: Memory
    """Memory use of the server process"""
    disk: Disk
    """File system of the server's working directory"""
    io: Transfer
    """Disk I/O of the server process"""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `/server_info`; times are in seconds.

    Published clients compare `version` and `sdk_version` with the agent server version that they
    need. `resources` is included only for users.
    """

    title: str = "agentsvc"
    """Always `agentsvc`"""
    version: str = INTERFACE_VERSION
    """Version of the agent server interface, which published clients check"""
    sdk_version: str = INTERFACE_VERSION
    """Same as `version`"""
    agentsvc_version: str = __version__
    """Version of this server"""
    uptime: float
    """Seconds since the start"""
    idle_time: float
    """Seconds since the last request"""
    resources: Resources | UnsetType = UNSET
    """Resource use of the server; omitted without a key"""


ROUTES: Final = Routes(scope=Scope.OPEN)
"""Every operation outside the two generations of the API."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The response of `/ready` to administrators."""

    status: str = "ok"
    """Always `ok`"""
    sandboxes: list[Protection]
    """Isolation of sandboxes per backend in use, the default backend first"""


@ROUTES.add("GET", "/alive")
async def get_alive(_request: web.Request) -> Alive:
    """Report that the process is alive.

    Answers as long as the process runs, even if the database or a backend fails. For the liveness
    probe of an orchestrator.
    """
    return Alive()


@ROUTES.add("GET", "/health")
async def get_health(_request: web.Request) -> Literal["OK"]:
    """Report that the process is alive.

    The same as `/alive`, with the text `OK` that clients of agent servers expect.
    """
    return "OK"


@ROUTES.add("GET", "/ready", errors=(BackendUnavailable,))
async def get_ready(request: web.Request) -> Literal["OK"] | Ready:
    """Report whether conversations can be started.

    Answers 503 until the database and the default backend are usable. The response is the text
    `OK`; with an administrator's key it describes the isolation of sandboxes.
    """
    config = request.app[CONFIG].sandboxes
    await request.app[DATABASE].one("SELECT 1")
    name = config.default_backend
    health = await _health_of(request.app[BACKENDS], name, time_limit=config.call_seconds)
    if not health.ok:
        raise BackendUnavailable(f"Backend {name} is not usable: {health.reason}")
    caller = await find_caller(request)
    if caller is None or caller.role is not Role.ADMIN:
        return "OK"
    return Ready(sandboxes=find_protections(request.app[BACKENDS], config))


@ROUTES.add("GET", "/server_info")
async def get_server_info(request: web.Request) -> ServerInfo:
    """Return the server's version and uptime, and with a key its resource use.

    Versions and times are public; the use of the machine's resources is shown only to users.
    """
    activity = request.app[ACTIVITY]
    info = ServerInfo(uptime=activity.uptime_seconds, idle_time=activity.idle_seconds)
    if await find_caller(request) is not None:
        used = await asyncio.to_thread(_resources, activity)
        info = msgspec.structs.replace(info, resources=used)
    return info


async def _health_of(registry: BackendRegistry, name: str, *, time_limit: float) -> Health:
    """Probe a backend; a group is healthy if the last check found one of its members healthy."""
    members = registry.members(name)
    if members == (name,):
        return await _probe(name, registry.get(name), time_limit=time_limit)
    known = {member: health for member, health in registry.health().items() if member in members}
    is_usable = any(health.ok for health in known.values())
    reasons = [f"`{member}`: {health.reason}" for member, health in known.items()]
    return Health(ok=is_usable, reason=". ".join(reasons))


async def _probe(name: str, backend: RuntimeBackend[Any], *, time_limit: float) -> Health:
    try:
        async with asyncio.timeout(time_limit):
            return await backend.probe()
    except TimeoutError:
        return Health(ok=False, reason="it does not answer")
    except AgentsvcError:
        raise
    except (Exception, SystemExit):  # a plugin may raise anything
        log.exception("backend failed", extra={"backend": name})
        return Health(ok=False, reason="its probe raised an unexpected error")


def _resources(activity: Activity) -> Resources:
    disk = shutil.disk_usage(".")
    return Resources(
        cpu_percent=_percent(activity.cpu_seconds, activity.uptime_seconds),
        memory=read_memory(),
        disk=copy_to(Disk, disk, percent=_percent(disk.used, disk.total)),
        io=_transfer(),
    )


def read_memory() -> Memory:
    """Return the memory use of this process; sizes are 0 if `/proc` does not report them."""
    page = resource.getpagesize()
    pages = _read(_PROC / "self/statm").split() or ["0", "0"]
    total = os.sysconf("SC_PHYS_PAGES") * page
    rss = int(pages[1]) * page
    return Memory(rss=rss, vms=int(pages[0]) * page, percent=_percent(rss, total))


def _transfer() -> Transfer:
    lines = (line.partition(": ") for line in _read(_PROC / "self/io").splitlines())
    counts = {name: int(count) for name, _, count in lines}
    return Transfer(
        read_bytes=counts.get("read_bytes", 0), write_bytes=counts.get("write_bytes", 0)
    )


def _read(file: Path) -> str:
    """Return the text of a file in `/proc`, or an empty string if it cannot be read."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0
