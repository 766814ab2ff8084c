"""Checkpoints: copies of a sandbox's files before each turn of an agent, for rolling back.

Backends store them as part of their sandbox, and delete them with it.
"""

import logging
from collections.abc import Sequence

import msgspec

from agentsvc.base import AgentsvcError, Conflict, new_id
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Capability, Checkpoint
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.operations import can
from agentsvc.sandboxes.state import Sandbox

log = logging.getLogger(__name__)


class Checkpoints(msgspec.Struct, eq=False):
    """Creates and lists checkpoints, and rolls sandboxes back to them."""

    calls: BackendCalls
    config: SandboxesConfig

    async def take(self, sandbox: Sandbox) -> None:
        """Create a checkpoint if enabled and supported; a failure is only logged."""
        if not self.config.checkpoints or sandbox.handle is None or not self._can_keep(sandbox):
            return
        handle, checkpoint_id = sandbox.handle, new_id()
        try:
            await self.calls.retry_while_fetching(
                sandbox.backend,
                lambda backend: backend.checkpoint(
                    handle,
                    checkpoint_id,
                    keep=self.config.checkpoints,
                    max_bytes=self.config.checkpoint_bytes,
                ),
            )
        except AgentsvcError as exc:
            facts = {"sandbox_id": sandbox.id, "reason": exc.log_text}
            log.warning("checkpoint not taken", extra=facts)

    async def of_sandbox(self, sandbox: Sandbox) -> Sequence[Checkpoint]:
        """Return the checkpoints of a sandbox, oldest first; empty if its backend supports none."""
        if sandbox.handle is None or not self._can_keep(sandbox):
            return ()
        async with self.calls.to(sandbox.backend) as backend:
            return await backend.checkpoints(sandbox.handle)

    async def roll_back(self, sandbox: Sandbox, checkpoint_id: str) -> None:
        """Restore the files of a stopped sandbox from a checkpoint; raises the backend's errors."""
        if sandbox.handle is None:
            raise Conflict("The sandbox was never created")
        async with self.calls.to(sandbox.backend) as backend:
            await backend.roll_back(sandbox.handle, checkpoint_id)

    def _can_keep(self, sandbox: Sandbox) -> bool:
        return can(self.calls.registry, sandbox, Capability.CHECKPOINTS)
