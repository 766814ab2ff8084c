"""Layers: stored copies of sandbox files that new sandboxes begin with."""

from collections.abc import Awaitable, Callable

import msgspec

from agentsvc.base import Conflict
from agentsvc.plugin import Capability, Spec
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.state import Sandbox
from agentsvc.sandboxes.table import SandboxTable


class Layers(msgspec.Struct, eq=False):
    """Stores and removes layers at backends, and reports which backends can copy sandboxes."""

    calls: BackendCalls
    table: SandboxTable

    def can_keep(self, spec: Spec) -> bool:
        """Return whether the spec's backend can store layers now; raises BackendUnavailable."""
        return not self.why_not_kept(spec)

    def why_not_kept(self, spec: Spec) -> str:
        """Return why the spec's backend cannot store layers now, or ""; raises like `can_keep`."""
        backend = self.calls.registry.get(spec.backend)
        if Capability.LAYERS not in backend.capabilities:
            return f"the {backend.name} backend keeps none"
        return backend.why_no_copies()

    def can_copy(self, sandbox: Sandbox) -> bool:
        """Return whether a new sandbox can begin with a copy of this one's files, in any phase."""
        backend = self.calls.registry.find(sandbox.backend)
        if backend is None or sandbox.handle is None:
            return False
        return Capability.COPIES in backend.capabilities and not backend.why_no_copies()

    async def keep(self, sandbox: Sandbox, layer_id: str, *, max_bytes: int) -> int:
        """Store a copy of the files of a stopped sandbox; return its size in bytes.

        Raises Conflict unless the sandbox is stopped, OrderRejected above `max_bytes`.
        """
        if sandbox.handle is None:
            raise Conflict("The sandbox was never created")
        handle = sandbox.handle
        return await self.calls.retry_while_fetching(
            sandbox.backend,
            lambda backend: backend.keep_layer(handle, layer_id, max_bytes=max_bytes),
        )

    async def remove_unused(
        self, backend: str, used: Callable[[], Awaitable[frozenset[str]]]
    ) -> frozenset[str]:
        """Remove the layers that are neither used nor about to be copied; return the others.

        Calls `used` after listing the layers, so that a new layer does not count as unused.
        """
        async with self.calls.to(backend) as lent:
            there = frozenset(await lent.layers())
            unused = there - await used()
            unused -= await self.table.awaited_layers()
            for layer_id in unused:
                await lent.remove_layer(layer_id)
        return there - unused
