"""Checkpoints: the files that sandboxes had before each turn of an agent, to which they can go back.

They are kept by the backend, as a part of their sandbox, and go with it.
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
    """Has backends keep checkpoints, and has sandboxes go back to them."""

    calls: BackendCalls
    config: SandboxesConfig

    async def take(self, sandbox: Sandbox) -> None:
        """Keep a checkpoint where that is wanted and can be done; a failure is only noted."""
        if not self.config.checkpoints or sandbox.handle is None or not self._can_keep(sandbox):
            return
        handle, checkpoint_id = sandbox.handle, new_id()
        try:
            await self.calls.until_done(
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
        """Return the checkpoints of a sandbox, the oldest first; none where there never are any."""
        if sandbox.handle is None or not self._can_keep(sandbox):
            return ()
        async with self.calls.to(sandbox.backend) as backend:
            return await backend.checkpoints(sandbox.handle)

    async def roll_back(self, sandbox: Sandbox, checkpoint_id: str) -> None:
        """Have a stopped sandbox go on with the files of a checkpoint; raises as the backend does."""
        if sandbox.handle is None:
            raise Conflict("The sandbox was never made")
        async with self.calls.to(sandbox.backend) as backend:
            await backend.roll_back(sandbox.handle, checkpoint_id)

    def _can_keep(self, sandbox: Sandbox) -> bool:
        return can(self.calls.registry, sandbox, Capability.CHECKPOINTS)
