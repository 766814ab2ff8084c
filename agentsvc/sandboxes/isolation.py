"""Default isolation, and the check at start that it is available.

Which level of isolation a backend is made for, and which limits it enforces, each backend says
itself; here that is compared with the configuration. No I/O.
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

_OF_MACHINE: Final = 2
"""One sandbox may have one part in so many of this machine's memory, unless its spec says more."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """How sandboxes of a backend are held, here and now.

    `default_isolation` is the level the backend is made for. `limits` are those that each sandbox
    gets whose spec sets none, and `not_limited` names those that cannot be enforced here.
    """

    backend: str
    """Name of the backend"""
    isolation: Isolation
    """How far its sandboxes are kept from everything else, here and now"""
    default_isolation: Isolation
    """How far they would be where the backend can do all it is made for"""
    is_below_default: bool
    """Whether they are kept less far than that"""
    reason: str
    """Why, for administrators; empty otherwise"""
    remedy: str
    """What to do about it, for administrators; empty otherwise"""
    limits: dict[str, int]
    """Limits of each sandbox whose spec sets none, by name: bytes, processes, or thousandths of a
    processor as the name says"""
    not_limited: list[str]
    """Names of the limits that cannot be enforced here"""

    def describe(self) -> str:
        """Say it on one line, as the server does when it is ready."""
        level = f"isolation: {self.isolation}"
        if self.is_below_default:
            level += f", BELOW the default `{self.default_isolation}`"
        limits = f"limits: {', '.join(self.limits) or 'none'}"
        if self.not_limited:
            limits += f", NOT limited: {', '.join(self.not_limited)}"
        return f"{level}; {limits}"


def floor_of(backend: Backend, config: SandboxesConfig) -> Isolation:
    """Return the least isolation that a sandbox of a backend may be started with."""
    floor = config.isolation.level or backend.default_isolation
    return floor if floor.meets(backend.least_isolation) else backend.least_isolation


def with_floor(spec: Spec, floor: Isolation) -> Spec:
    """Return the spec, asking for no less isolation than a floor."""
    return spec if spec.isolation.meets(floor) else msgspec.structs.replace(spec, isolation=floor)


def with_limits(spec: Spec, backend: Backend, config: SandboxesConfig) -> Spec:
    """Return the spec with the limits by default for what it leaves open, as far as they hold.

    0 in a spec leaves out the limit by default.
    """
    found = {**_default_limits(spec, backend, config), **_given(spec.limits)}
    kept = {name: value or None for name, value in found.items()}
    return msgspec.structs.replace(spec, limits=Limits(**kept))


def as_now(spec: Spec, backend: Backend, config: SandboxesConfig) -> Spec:
    """Return the spec of a sandbox that is there, as it is to be started now.

    It may be from before there was a floor, or have limits by default that hold here no longer.
    """
    enforced = backend.fences(spec).limits
    usual = msgspec.structs.asdict(config.limits)
    given = {
        name: value
        for name, value in _given(spec.limits).items()
        if name in enforced or value != usual.get(name)
    }
    spec = msgspec.structs.replace(spec, limits=Limits(**given))
    return with_limits(with_floor(spec, floor_of(backend, config)), backend, config)


def protection_of(name: str, backend: Backend, spec: Spec, config: SandboxesConfig) -> Protection:
    """Return how sandboxes of a spec are held at an open backend."""
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
    """Return how sandboxes are held at each backend in use that is open, the default one first."""
    found: dict[str, Protection] = {}
    for names, spec in _in_use(registry, config):
        for name, backend in _open(registry, names).items():
            one = protection_of(name, backend, spec, config)
            # Of several specs at one backend the one that is held least counts.
            if name not in found or not one.isolation.meets(found[name].isolation):
                found[name] = one
    return list(found.values())


def check_isolation(registry: BackendRegistry, config: SandboxesConfig) -> None:
    """Raise StartFailed where sandboxes in use would be isolated less than they have to be.

    A backend that is not open is left out: once it is, it refuses what it cannot hold.
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
    """Yield the default backend, and those that configured specs name, each with a spec of it."""
    default = config.default_backend
    own = [spec for spec in registry.specs() if spec.backend == default]
    yield registry.members(default), own[0] if own else Spec(id="", backend=default)
    for spec in registry.configured_specs():
        yield registry.members(spec.backend), spec


def _open(registry: BackendRegistry, names: tuple[str, ...]) -> Mapping[str, Backend]:
    return {name: backend for name in names if (backend := registry.find(name)) is not None}


def _given(limits: Limits) -> dict[str, Any]:
    given = msgspec.structs.asdict(limits)
    return {name: value for name, value in given.items() if value is not None}


def _default_limits(spec: Spec, backend: Backend, config: SandboxesConfig) -> dict[str, int]:
    """Return the limits by default that this backend enforces."""
    fences = backend.fences(spec)
    found = {
        name: value
        for name, value in msgspec.structs.asdict(config.limits).items()
        if value and name in fences.limits
    }
    if not backend.runs_here:
        # How large a disk elsewhere is, such as a volume of a cluster, is its backend's to say.
        found.pop("disk_bytes", None)
    if backend.default_isolation.meets(Isolation.CONTAINER):
        # An engine sets its own for containers, and refuses more than it may give itself.
        found.pop("open_files", None)
    if "memory_bytes" in found:
        found["memory_bytes"] = min(_memory_bounds(found["memory_bytes"], backend, config))
    return found


def _memory_bounds(usual: int, backend: Backend, config: SandboxesConfig) -> Iterator[int]:
    yield usual
    if config.max_memory_bytes:
        yield config.max_memory_bytes
    if backend.runs_here:
        yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _OF_MACHINE
