"""Layers: kept copies of the files of sandboxes, with which other sandboxes begin."""

from collections.abc import Awaitable, Callable

import msgspec

from agentsvc.base import Conflict
from agentsvc.plugin import Capability, Spec
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.state import Sandbox
from agentsvc.sandboxes.table import SandboxTable


class Layers(msgspec.Struct, eq=False):
    """Has backends keep and remove layers, and knows which copy sandboxes."""

    calls: BackendCalls
    table: SandboxTable

    def can_keep(self, spec: Spec) -> bool:
        """Say whether the backend of a spec keeps layers now; raises BackendUnavailable without one."""
        return not self.why_not_kept(spec)

    def why_not_kept(self, spec: Spec) -> str:
        """Say why the backend of a spec keeps no layers now, or nothing; raises as `can_keep`."""
        backend = self.calls.registry.get(spec.backend)
        if Capability.LAYERS not in backend.capabilities:
            return f"the {backend.name} backend keeps none"
        return backend.why_no_copies()

    def can_copy(self, sandbox: Sandbox) -> bool:
        """Say whether another sandbox can begin with the files of this one, whatever it does."""
        backend = self.calls.registry.find(sandbox.backend)
        if backend is None or sandbox.handle is None:
            return False
        return Capability.COPIES in backend.capabilities and not backend.why_no_copies()

    async def keep(self, sandbox: Sandbox, layer_id: str, *, max_bytes: int) -> int:
        """Keep a copy of the files of a stopped sandbox; return how many bytes it takes.

        Raises Conflict unless it is stopped, OrderRejected for more than `max_bytes`.
        """
        if sandbox.handle is None:
            raise Conflict("The sandbox was never made")
        handle = sandbox.handle
        return await self.calls.until_done(
            sandbox.backend,
            lambda backend: backend.keep_layer(handle, layer_id, max_bytes=max_bytes),
        )

    async def remove_unused(
        self, backend: str, used: Callable[[], Awaitable[frozenset[str]]]
    ) -> frozenset[str]:
        """Remove the layers that are neither used nor about to be copied; return what there is.

        What is used is asked for after what there is, so that nothing new is taken for unused.
        """
        async with self.calls.to(backend) as lent:
            there = frozenset(await lent.layers())
            unused = there - await used()
            unused -= await self.table.awaited_layers()
            for layer_id in unused:
                await lent.remove_layer(layer_id)
        return there - unused
