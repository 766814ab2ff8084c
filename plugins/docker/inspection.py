"""Maps the engine's view of a container to a report for the server. Pure."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agentsvc.plugin import NOT_CALLING, Cause, Endpoint, PausedAs, Phase, Report, Usage

from .failures import one_line
from .plan import Json, isolation_of, needs_volume

_LIMITS: Final = ("cpus", "memory_bytes", "pids", "open_files")
_SIGNAL: Final = 128
_NO_COMMAND: Final = (126, 127)
_KILLED: Final = 137
_TERMINATED: Final = 143
UNKNOWN: Final = 255
"""Also the code of a container that ended while the engine was not running."""
_UNGUARDED: Final = {"host_ports": "reachable"}
_OOM_REASON: Final = "a process in it exceeded the sandbox's memory limit and was killed"


class ContainerStates(msgspec.Struct, frozen=True, kw_only=True):
    """The observed states of a sandbox's containers."""

    container: Json
    front: Json | None
    """The container whose address or published ports lead to the sandbox; None if it is missing."""
    is_paused: bool = False
    """Whether it was paused on purpose."""
    is_on_disk: bool = False
    """Whether its last run has a checkpoint on the engine's disk, or is being saved."""
    had_oom: bool = False
    """Whether the engine has reported an OOM kill in it."""
    was_told: bool = False
    """Whether the engine has reported its end, as it does for every end that it observes."""
    publish: str = ""
    """The address at which ports are published; empty if containers' own addresses are used."""
    default_runtime: str = ""


def to_report(seen: ContainerStates) -> Report:
    """Return a report; the awaited ports of a running sandbox are not checked yet."""
    labels = labels_of(seen.container)
    report = Report(
        phase=Phase.STARTING,
        working_dir=labels.get("agentsvc.workdir", ""),
        isolation=isolation_of(labels.get("agentsvc.runtime") or seen.default_runtime),
        enforced=_asked_limits(seen.container),
        facts=_facts(labels),
    )
    match status_of(seen.container):
        case "running" if not seen.is_on_disk:
            return _running(report, seen)
        case "paused" | "running":
            return replace(
                report,
                phase=Phase.PAUSED,
                paused_as=PausedAs.FROZEN,
                endpoints=endpoints(seen),
            )
        case "created" | "initialized" | "configured" | "restarting":
            return replace(report, reason="its container is being started")
        case _:
            return _ended(report, seen)


def _ended(report: Report, seen: ContainerStates) -> Report:
    state = seen.container.get("State") or {}
    if seen.is_paused or seen.is_on_disk:
        paused_as = PausedAs.ON_DISK if seen.is_on_disk else PausedAs.STOPPED
        error = one_line(str(state.get("Error") or ""))
        reason = f"its last start failed, and only its files are left: {error}" if error else ""
        return replace(report, phase=Phase.PAUSED, paused_as=paused_as, reason=reason)
    code, cause, reason = ended(state, had_oom=seen.had_oom, was_told=seen.was_told)
    return replace(report, phase=Phase.FAILED, exit_code=code, cause=cause, reason=reason)


def _facts(labels: Mapping[str, str]) -> dict[str, str]:
    facts = dict(NOT_CALLING) if labels.get("agentsvc.callback") != "yes" else {}
    is_open = labels.get("agentsvc.guard") == "no"
    return {**facts, **_UNGUARDED} if is_open else facts


def _running(report: Report, seen: ContainerStates) -> Report:
    if seen.front is None or not is_running(seen.front):
        return replace(report, reason="its gateway is not running")
    running = replace(report, phase=Phase.RUNNING, endpoints=endpoints(seen))
    if not seen.had_oom:
        return running
    facts = {**report.facts, "out_of_memory": "yes"}
    return replace(running, reason=_OOM_REASON, facts=facts)


def without_container(*, is_paused: bool) -> Report:
    """Return the report of a sandbox of which only the files are left."""
    reason = "its container was removed from the engine; its files still exist"
    if is_paused:
        return Report(phase=Phase.PAUSED, paused_as=PausedAs.STOPPED, reason=reason)
    return Report(phase=Phase.FAILED, cause=Cause.LOST, reason=reason)


def unguarded(report: Report) -> Report:
    """Return the report of a sandbox that can reach the ports of its machine."""
    return replace(report, facts={**report.facts, **_UNGUARDED})


def still_starting(report: Report) -> Report:
    """Return the report of a sandbox whose awaited ports do not accept connections yet."""
    return replace(report, phase=Phase.STARTING, reason="its ports do not answer yet")


def ended(
    state: Mapping[str, Any], *, had_oom: bool, was_told: bool = False
) -> tuple[int, Cause, str]:
    """Return the exit code of a container, its cause, and a description."""
    code = int(state.get("ExitCode") or 0)
    error = str(state.get("Error") or "")
    if state.get("OOMKilled") or (had_oom and code == _KILLED):
        cause, reason = Cause.OUT_OF_MEMORY, "it exceeded its memory limit and was killed"
    elif error:
        cause, reason = Cause.NOT_STARTED, one_line(error)
    elif code in _NO_COMMAND:
        cause = Cause.NOT_STARTED
        reason = f"its command cannot be run in its image, with exit code {code}"
    elif code == UNKNOWN and not was_told:
        cause, reason = Cause.HOST_RESTARTED, "its container ended while the engine was not running"
    elif code in (_KILLED, _TERMINATED):
        cause = Cause.LOST
        reason = f"its container was stopped from outside, with exit code {code}"
    elif _SIGNAL < code < UNKNOWN:
        cause, reason = Cause.SIGNALLED, f"its command was ended by signal {code - _SIGNAL}"
    else:
        cause, reason = Cause.EXITED, f"its command ended with exit code {code}"
    return code, cause, reason


def endpoints(seen: ContainerStates) -> tuple[Endpoint, ...]:
    """Return the present URL of each port; without ports that are unreachable."""
    found = []
    for name, number in ports_of(seen.container).items():
        if target := _target(seen, number):
            found.append(Endpoint(name=name, port=number, url=f"http://{target}"))
    return tuple(found)


def awaited(report: Report, container: Json) -> list[str] | None:
    """Return the URLs of the awaited ports; None if one of them has no address yet."""
    found = {end.name: end.url for end in report.endpoints}
    names = [name for name in labels_of(container).get("agentsvc.awaited", "").split(",") if name]
    return [found[name] for name in names] if found.keys() >= set(names) else None


def ports_of(container: Json) -> dict[str, int]:
    """Return the ports of a sandbox by name."""
    text = labels_of(container).get("agentsvc.ports", "")
    pairs = [part.partition("=") for part in text.split(",") if part]
    return {name: int(number) for name, _, number in pairs}


def is_in_volume(container: Json, default_runtime: str) -> bool:
    """Return whether such a sandbox always has its working directory in a volume."""
    runtime = labels_of(container).get("agentsvc.runtime") or default_runtime
    is_read_only = bool((container.get("HostConfig") or {}).get("ReadonlyRootfs"))
    return needs_volume(runtime, is_read_only=is_read_only)


def labels_of(container: Json) -> dict[str, str]:
    """Return a container's labels."""
    return (container.get("Config") or {}).get("Labels") or {}


def _asked_limits(container: Json) -> tuple[str, ...]:
    """Return the names of the limits in a container's order."""
    asked = labels_of(container).get("agentsvc.limits", "").split(",")
    return tuple(name for name in _LIMITS if name in asked)


def is_running(container: Json) -> bool:
    """Return whether a container runs and is not frozen."""
    state = container.get("State") or {}
    return bool(state.get("Running")) and not state.get("Paused")


def _target(seen: ContainerStates, number: int) -> str:
    settings = (seen.front or {}).get("NetworkSettings") or {}
    if seen.publish:
        bound = (settings.get("Ports") or {}).get(f"{number}/tcp") or []
        host_port = next((one["HostPort"] for one in bound if one.get("HostPort")), "")
        return f"{seen.publish}:{host_port}" if host_port else ""
    for name, network in (settings.get("Networks") or {}).items():
        if name.endswith("-outer") and network.get("IPAddress"):
            return f"{network['IPAddress']}:{number}"
    return ""


def usage_of(stats: Json) -> Usage:
    """Return the usage from the engine's statistics of a container."""
    spent = _count(stats, "cpu_stats", "cpu_usage", "total_usage")
    used = _count(stats, "memory_stats", "usage")
    # Page cache that the kernel can drop at once does not count.
    kept = _count(stats, "memory_stats", "stats", "inactive_file")
    if kept is None:
        kept = _count(stats, "memory_stats", "stats", "total_inactive_file")
    return Usage(
        cpu_seconds=None if spent is None else spent / 1e9,
        memory_bytes=None if used is None else max(0, used - (kept or 0)),
        processes=_count(stats, "pids_stats", "current"),
    )


def _count(found: Any, *path: str) -> int | None:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, int) else None


def status_of(container: Json) -> str:
    """Return the engine's status of a container."""
    state = container.get("State") or {}
    return str(state.get("Status") or ("running" if state.get("Running") else "exited"))
