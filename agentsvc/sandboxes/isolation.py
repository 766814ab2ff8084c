"""Default isolation and limits, and the check at startup that the isolation is available.

Each backend declares its default isolation and the limits it enforces; this module compares both
with the configuration. No I/O.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from agentsvc.base import StartFailed
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Isolation, Limits, Spec
from agentsvc.sandboxes.plugin_loader import Backend
from agentsvc.sandboxes.registry import BackendRegistry

_MEMORY_DIVISOR: Final = 2
"""A sandbox's default memory limit is at most this machine's memory divided by this number."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """Isolation and limits in force for the sandboxes of a backend on this system.

    `default_isolation` is the level that the backend is designed for. `limits` apply to sandboxes
    whose spec sets none, and `not_limited` names the limits that cannot be enforced here.
    """

    backend: str
    """Name of the backend"""
    isolation: Isolation
    """Isolation level of its sandboxes on this system"""
    default_isolation: Isolation
    """Isolation level on a system with everything that the backend uses"""
    is_below_default: bool
    """Whether `isolation` is weaker than `default_isolation`"""
    reason: str
    """Why the isolation is weaker, for administrators; empty otherwise"""
    remedy: str
    """How to get the default isolation, for administrators; empty otherwise"""
    limits: dict[str, int]
    """Limits of each sandbox whose spec sets none, by name; the name tells the unit: bytes,
    processes, or thousandths of a processor"""
    not_limited: list[str]
    """Names of the limits that cannot be enforced here"""

    def describe(self) -> str:
        """Return a one-line summary, as the server prints when it is ready."""
        level = f"isolation: {self.isolation}"
        if self.is_below_default:
            level += f", BELOW the default `{self.default_isolation}`"
        limits = f"limits: {', '.join(self.limits) or 'none'}"
        if self.not_limited:
            limits += f", NOT limited: {', '.join(self.not_limited)}"
        return f"{level}; {limits}"


def floor_of(backend: Backend, config: SandboxesConfig) -> Isolation:
    """Return the minimum isolation with which a sandbox of a backend may start."""
    floor = config.isolation.level or backend.default_isolation
    return floor if floor.meets(backend.least_isolation) else backend.least_isolation


def with_floor(spec: Spec, floor: Isolation) -> Spec:
    """Return the spec with its required isolation raised to at least the floor."""
    return spec if spec.isolation.meets(floor) else msgspec.structs.replace(spec, isolation=floor)


def with_limits(spec: Spec, backend: Backend, config: SandboxesConfig) -> Spec:
    """Return the spec with the default limits for those it leaves open, if the backend enforces them.

    0 in a spec disables the default limit.
    """
    found = {**_default_limits(spec, backend, config), **_explicit_limits(spec.limits)}
    kept = {name: value or None for name, value in found.items()}
    return msgspec.structs.replace(spec, limits=Limits(**kept))


def as_now(spec: Spec, backend: Backend, config: SandboxesConfig) -> Spec:
    """Return the spec of an existing sandbox with the current isolation floor and default limits.

    Its stored spec may predate the floor, or have default limits that are not enforced any more.
    """
    enforced = backend.fences(spec).limits
    usual = msgspec.structs.asdict(config.limits)
    given = {
        name: value
        for name, value in _explicit_limits(spec.limits).items()
        if name in enforced or value != usual.get(name)
    }
    spec = msgspec.structs.replace(spec, limits=Limits(**given))
    return with_limits(with_floor(spec, floor_of(backend, config)), backend, config)


def protection_of(name: str, backend: Backend, spec: Spec, config: SandboxesConfig) -> Protection:
    """Return isolation and limits of sandboxes of a spec at an open backend."""
    fences = backend.fences(spec)
    limits = _default_limits(spec, backend, config)
    wanted = [field for field, value in msgspec.structs.asdict(config.limits).items() if value]
    return Protection(
        backend=name,
        isolation=fences.isolation,
        default_isolation=backend.default_isolation,
        is_below_default=not fences.isolation.meets(backend.default_isolation),
        reason=fences.reason,
        remedy=fences.remedy,
        limits=limits,
        not_limited=[field for field in wanted if field not in fences.limits],
    )


def find_protections(registry: BackendRegistry, config: SandboxesConfig) -> list[Protection]:
    """Return isolation and limits at each open backend in use, the default backend first."""
    found: dict[str, Protection] = {}
    for names, spec in _in_use(registry, config):
        for name, backend in _open(registry, names).items():
            one = protection_of(name, backend, spec, config)
            # Of several specs at one backend the one with the weakest isolation counts.
            if name not in found or not one.isolation.meets(found[name].isolation):
                found[name] = one
    return list(found.values())


def check_isolation(registry: BackendRegistry, config: SandboxesConfig) -> None:
    """Raise StartFailed if sandboxes of a spec in use would be isolated less than required.

    A backend that is not open is skipped: once open, it rejects orders it cannot isolate enough.
    """
    for names, spec in _in_use(registry, config):
        there = _open(registry, names)
        weak = {
            name: backend
            for name, backend in there.items()
            if not backend.fences(spec).isolation.meets(floor_of(backend, config))
        }
        if there and len(weak) == len(there):
            name, backend = next(iter(weak.items()))
            raise _refusal(name, backend, spec, config)


def _refusal(name: str, backend: Backend, spec: Spec, config: SandboxesConfig) -> StartFailed:
    fences = backend.fences(spec)
    floor = floor_of(backend, config)
    ways = [fences.remedy] if fences.remedy else []
    if fences.isolation.meets(backend.least_isolation):
        ways.append(f'to accept it without, configure: sandboxes.isolation = "{fences.isolation}"')
    return StartFailed(
        f"sandboxes of the backend `{name}` would have isolation `{fences.isolation}`"
        f" instead of `{floor}`{f': {fences.reason}' if fences.reason else ''}",
        hint="; ".join(ways),
    )


def _in_use(
    registry: BackendRegistry, config: SandboxesConfig
) -> Iterator[tuple[tuple[str, ...], Spec]]:
    """Yield the default backend, and those of configured specs, each with a spec."""
    default = config.default_backend
    own = [spec for spec in registry.specs() if spec.backend == default]
    yield registry.members(default), own[0] if own else Spec(id="", backend=default)
    for spec in registry.configured_specs():
        yield registry.members(spec.backend), spec


def _open(registry: BackendRegistry, names: tuple[str, ...]) -> Mapping[str, Backend]:
    return {name: backend for name in names if (backend := registry.find(name)) is not None}


def _explicit_limits(limits: Limits) -> dict[str, Any]:
    given = msgspec.structs.asdict(limits)
    return {name: value for name, value in given.items() if value is not None}


def _default_limits(spec: Spec, backend: Backend, config: SandboxesConfig) -> dict[str, int]:
    """Return the default limits that this backend enforces."""
    fences = backend.fences(spec)
    found = {
        name: value
        for name, value in msgspec.structs.asdict(config.limits).items()
        if value and name in fences.limits
    }
    if not backend.runs_here:
        # The backend itself sets the size of a disk elsewhere, such as a volume of a cluster.
        found.pop("disk_bytes", None)
    if backend.default_isolation.meets(Isolation.CONTAINER):
        # A container engine sets its own limit, and rejects one above its own.
        found.pop("open_files", None)
    if "memory_bytes" in found:
        found["memory_bytes"] = min(_memory_bounds(found["memory_bytes"], backend, config))
    return found


def _memory_bounds(usual: int, backend: Backend, config: SandboxesConfig) -> Iterator[int]:
    yield usual
    if config.max_memory_bytes:
        yield config.max_memory_bytes
    if backend.runs_here:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MEMORY_DIVISOR
