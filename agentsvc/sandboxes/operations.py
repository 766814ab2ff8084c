"""Operations that a sandbox supports, by its phase and its backend's capabilities."""

from agentsvc.base import Unsupported
from agentsvc.plugin import Capability, Phase
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.state import Sandbox, Target


def require(registry: BackendRegistry, sandbox: Sandbox, capability: Capability) -> None:
    """Raise Unsupported if the backend of a sandbox lacks a capability.

    Raises BackendUnavailable if the backend is not open.
    """
    if capability not in registry.get(sandbox.backend).capabilities:
        raise Unsupported(f"The {sandbox.backend} backend cannot {capability} a sandbox")


def possible(registry: BackendRegistry, sandbox: Sandbox, target: Target) -> Target | None:
    """Return the possible target nearest to the wanted one, or None."""
    if target is Target.STOPPED and not _is_stoppable(registry, sandbox):
        target = Target.PAUSED
    if target is Target.HIBERNATED and not can_hibernate(registry, sandbox.backend):
        target = Target.RECLAIMED
    if target is Target.RECLAIMED and not can_reclaim(registry, sandbox.backend):
        target = Target.PAUSED
    is_possible = target is not Target.PAUSED or is_pausable(registry, sandbox)
    return target if is_possible else None


def can(registry: BackendRegistry, sandbox: Sandbox, capability: Capability) -> bool:
    """Return whether the backend of a sandbox is open and has a capability."""
    found = registry.find(sandbox.backend)
    return found is not None and capability in found.capabilities


def is_pausable(registry: BackendRegistry, sandbox: Sandbox) -> bool:
    """Return whether a sandbox runs and can be paused."""
    return can(registry, sandbox, Capability.PAUSE) and sandbox.phase is Phase.RUNNING


def can_reclaim(registry: BackendRegistry, backend: str) -> bool:
    """Return whether a backend can swap out the memory of paused sandboxes now."""
    found = registry.find(backend)
    return found is not None and not found.why_no_reclaim()


def can_hibernate(registry: BackendRegistry, backend: str) -> bool:
    """Return whether a backend can save the memory of paused sandboxes to disk now."""
    found = registry.find(backend)
    return found is not None and not found.why_no_hibernate()


def _is_stoppable(registry: BackendRegistry, sandbox: Sandbox) -> bool:
    can_stop = can(registry, sandbox, Capability.STOP)
    return can_stop and sandbox.phase in (Phase.RUNNING, Phase.PAUSED)
