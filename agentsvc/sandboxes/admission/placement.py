"""Chooses the backend of a sandbox whose spec names a group of backends. No I/O."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Health, Spec
from agentsvc.sandboxes.admission.capacity import (
    AdmittedSandbox,
    CapacityLimits,
    Load,
    ServerLimits,
    roomiest,
    total,
)
from agentsvc.sandboxes.isolation import floor_of, with_floor, with_limits
from agentsvc.sandboxes.registry import BackendRegistry

_NOT_ASKED: Final = Health(ok=False, reason="it was not asked yet")


def find_fitting(registry: BackendRegistry, spec: Spec, config: SandboxesConfig) -> list[Spec]:
    """Return the spec for each backend that can take a sandbox, with isolation and limits applied.

    Unhealthy backends of a group are skipped; a backend that is no group is used whatever its
    health. Raises OrderRejected or BackendUnavailable with all reasons if no backend fits.
    """
    name = spec.backend
    members = registry.members(name)
    if members == (name,):
        return [checked(registry, spec, config)]
    found, refusals = [], []
    is_down = False
    for member in members:
        try:
            health = registry.health().get(member, _NOT_ASKED)
            if not health.ok:
                raise BackendUnavailable(health.reason)
            found.append(checked(registry, registry.complete(spec, member), config))
        except AgentsvcError as exc:
            is_down = is_down or exc.may_pass
            refusals.append(f"`{member}`: {exc.message}")
    if found:
        return found
    kind = BackendUnavailable if is_down else OrderRejected
    raise kind(f"No backend of `{name}` can take the sandbox. {'. '.join(refusals)}")


def choose(
    specs: Sequence[Spec], *, limits: ServerLimits, held: Collection[AdmittedSandbox], wanted: Load
) -> Spec:
    """Return the spec of the backend with most room, or with fewest sandboxes if all are full."""
    by_name = {spec.backend: spec for spec in specs}
    state: Mapping[str, tuple[CapacityLimits, Load]] = {
        name: (
            limits.backends.get(name, CapacityLimits()),
            total(one.load for one in held if one.backend == name),
        )
        for name in by_name
    }
    best = roomiest(state, wanted) or sorted(state, key=lambda name: state[name][1].sandboxes)
    return by_name[best[0]]


def checked(registry: BackendRegistry, spec: Spec, config: SandboxesConfig) -> Spec:
    """Return the spec with the isolation floor and default limits of its backend.

    Raises OrderRejected if the backend cannot enforce them, BackendUnavailable if it is not open.
    """
    backend = registry.get(spec.backend)
    held = with_floor(spec, floor_of(backend, config))
    backend.check_fences(held)
    limited = with_limits(held, backend, config)
    backend.check_spec(limited)
    return limited
