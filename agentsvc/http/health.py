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
"""The version of the agent server whose interface this one serves: the `agent` extra's."""

log = logging.getLogger(__name__)

_PROC: Final = Path("/proc")


class Alive(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a server that is alive."""

    status: str = "ok"
    """Always `ok`"""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of the server process, in bytes, and its part of the machine's."""

    rss: int
    """Bytes in memory"""
    vms: int
    """Bytes of address space"""
    percent: float
    """Part of the machine's memory, in percent"""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """The file system that holds the working directory, in bytes."""

    total: int
    """Bytes the file system has"""
    used: int
    """Bytes in use"""
    free: int
    """Bytes the server can still write"""
    percent: float
    """Part in use, in percent"""


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """What the server process has read from disks and written to them, in bytes."""

    read_bytes: int
    """Bytes read since the start"""
    write_bytes: int
    """Bytes written since the start"""


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What the server process uses; the processor's part is the mean since the start."""

    cpu_percent: float
    """Part of one processor used since the start, in percent"""
    memory: Memory
    """Memory of the server process"""
    disk: Disk
    """The file system of the server"""
    io: Transfer
    """What the server process has read and written"""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /server_info; times are in seconds.

    Published clients compare `version` and `sdk_version` with what they need of an agent server. What
    the server uses is told to users only.
    """

    title: str = "agentsvc"
    """Always `agentsvc`"""
    version: str = INTERFACE_VERSION
    """Version of the interface, which published clients compare with what they need of an agent
    server"""
    sdk_version: str = INTERFACE_VERSION
    """The same"""
    agentsvc_version: str = __version__
    """Version of this server"""
    uptime: float
    """Seconds since the start"""
    idle_time: float
    """Seconds since the last request"""
    resources: Resources | UnsetType = UNSET
    """What the server uses; left out without a key"""


ROUTES: Final = Routes(scope=Scope.OPEN)
"""Every operation outside the two generations of the API."""


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """What administrators are told by /ready: how sandboxes are held, the default backend first."""

    status: str = "ok"
    """Always `ok`"""
    sandboxes: list[Protection]
    """How sandboxes are held, the default backend first"""


@ROUTES.add("GET", "/alive")
async def get_alive(_request: web.Request) -> Alive:
    """Say that the process answers.

    Answers as long as the process does, whatever else is wrong. For an orchestrator that restarts
    what is dead.
    """
    return Alive()


@ROUTES.add("GET", "/health")
async def get_health(_request: web.Request) -> Literal["OK"]:
    """Say that the process answers.

    The same as `/alive`, with the text `OK`, which clients of agent servers ask for.
    """
    return "OK"


@ROUTES.add("GET", "/ready", errors=(BackendUnavailable,))
async def get_ready(request: web.Request) -> Literal["OK"] | Ready:
    """Say whether conversations can be started.

    Refused (503) until the database and the default backend are usable. The answer is the text
    `OK`; with an administrator's key it tells how sandboxes are held.
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
    """Say what the server is and how long it runs; with a key, what it uses, too.

    Versions and times are told to everybody; what the server uses of its machine only to users.
    """
    activity = request.app[ACTIVITY]
    info = ServerInfo(uptime=activity.uptime_seconds, idle_time=activity.idle_seconds)
    if await find_caller(request) is not None:
        used = await asyncio.to_thread(_resources, activity)
        info = msgspec.structs.replace(info, resources=used)
    return info


async def _health_of(registry: BackendRegistry, name: str, *, time_limit: float) -> Health:
    """Ask a backend how it is; of a group, one that takes sandboxes is enough."""
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
        return Health(ok=False, reason="it failed in a way it should not")


def _resources(activity: Activity) -> Resources:
    disk = shutil.disk_usage(".")
    return Resources(
        cpu_percent=_percent(activity.cpu_seconds, activity.uptime_seconds),
        memory=read_memory(),
        disk=copy_to(Disk, disk, percent=_percent(disk.used, disk.total)),
        io=_transfer(),
    )


def read_memory() -> Memory:
    """Return the memory of this process; zeros where the system does not tell."""
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
    """Return the text of a file of /proc, or nothing on a system that has none or hides it."""
    try:
        return file.read_text()
    except OSError:
        return ""


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole > 0 else 0.0
