"""Chooses the backend of a sandbox whose spec names several. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Health, Spec
from agentsvc.sandboxes.admission.capacity import (
    AdmittedSandbox,
    CapacityLimits,
    Limits,
    Load,
    roomiest,
    total,
)
from agentsvc.sandboxes.isolation import floor_of, with_floor, with_limits
from agentsvc.sandboxes.registry import BackendRegistry

_NOT_ASKED: Final = Health(ok=False, reason="it was not asked yet")


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """A backend, and the spec as it is there."""

    backend: str
    spec: Spec


def places_of(registry: BackendRegistry, spec: Spec, config: SandboxesConfig) -> list[Placed]:
    """Return where a sandbox of this spec may go; raises why it may go nowhere.

    The spec of each place asks for the isolation and the limits that are needed there.

    A backend that is down is no place. One that is named alone is the only place, be it down.
    """
    name = spec.backend
    members = registry.members(name)
    if members == (name,):
        return [Placed(backend=name, spec=checked(registry, name, spec, config))]
    found, refusals = [], []
    is_down = False
    for member in members:
        try:
            health = registry.health().get(member, _NOT_ASKED)
            if not health.ok:
                raise BackendUnavailable(health.reason)
            fitting = checked(registry, member, registry.complete(spec, member), config)
        except AgentsvcError as exc:
            is_down = is_down or exc.retryable
            refusals.append(f"`{member}`: {exc.message}")
        else:
            found.append(Placed(backend=member, spec=fitting))
    if found:
        return found
    kind = BackendUnavailable if is_down else OrderRejected
    raise kind(f"No backend of `{name}` can take the sandbox. {'. '.join(refusals)}")


def choose(
    places: Sequence[Placed], *, limits: Limits, held: Collection[AdmittedSandbox], wanted: Load
) -> Placed:
    """Return the place with most room; where there is none, the one with fewest sandboxes."""
    by_name = {place.backend: place for place in places}
    state: Mapping[str, tuple[CapacityLimits, Load]] = {
        name: (
            limits.backends.get(name, CapacityLimits()),
            total(one.load for one in held if one.backend == name),
        )
        for name in by_name
    }
    best = roomiest(state, wanted) or sorted(state, key=lambda name: state[name][1].sandboxes)
    return by_name[best[0]]


def checked(registry: BackendRegistry, name: str, spec: Spec, config: SandboxesConfig) -> Spec:
    """Return a spec with the isolation and the limits that it has at a backend.

    Raises OrderRejected where the backend cannot hold it so, BackendUnavailable if it is away.
    """
    backend = registry.get(name)
    held = with_floor(spec, floor_of(backend, config))
    backend.check_fences(held)
    limited = with_limits(held, backend, config)
    backend.check_spec(limited)
    return limited
