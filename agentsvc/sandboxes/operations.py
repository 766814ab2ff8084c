"""Operations that a sandbox allows, by its phase and its backend's capabilities."""

from agentsvc.base import BackendUnavailable, Unsupported
from agentsvc.plugin import Capability, Phase
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.state import Sandbox, Target


def require(registry: BackendRegistry, sandbox: Sandbox, capability: Capability) -> None:
    """Raise Unsupported where the backend of a sandbox lacks a capability.

    Raises BackendUnavailable where there is no such backend.
    """
    if capability not in registry.get(sandbox.backend).capabilities:
        raise Unsupported(f"The {sandbox.backend} backend cannot {capability} a sandbox")


def possible(registry: BackendRegistry, sandbox: Sandbox, target: Target) -> Target | None:
    """Return what comes nearest to a target and can be done to a sandbox, None for nothing."""
    if target is Target.STOPPED and not _is_stoppable(registry, sandbox):
        target = Target.PAUSED
    if target is Target.HIBERNATED and not can_hibernate(registry, sandbox.backend):
        target = Target.RECLAIMED
    if target is Target.RECLAIMED and not can_reclaim(registry, sandbox.backend):
        target = Target.PAUSED
    is_possible = target is not Target.PAUSED or is_pausable(registry, sandbox)
    return target if is_possible else None


def is_pausable(registry: BackendRegistry, sandbox: Sandbox) -> bool:
    """Say whether a sandbox runs and can be paused."""
    return _can(registry, sandbox, Capability.PAUSE) and sandbox.phase is Phase.RUNNING


def can_reclaim(registry: BackendRegistry, backend: str) -> bool:
    """Say whether a backend can push the memory of paused sandboxes out now."""
    try:
        return not registry.get(backend).why_no_reclaim()
    except BackendUnavailable:
        return False


def can_hibernate(registry: BackendRegistry, backend: str) -> bool:
    """Say whether a backend can keep the memory of paused sandboxes on disk now."""
    try:
        return not registry.get(backend).why_no_hibernate()
    except BackendUnavailable:
        return False


def _is_stoppable(registry: BackendRegistry, sandbox: Sandbox) -> bool:
    can_stop = _can(registry, sandbox, Capability.STOP)
    return can_stop and sandbox.phase in (Phase.RUNNING, Phase.PAUSED)


def _can(registry: BackendRegistry, sandbox: Sandbox, capability: Capability) -> bool:
    try:
        require(registry, sandbox, capability)
    except (BackendUnavailable, Unsupported):
        return False
    return True
