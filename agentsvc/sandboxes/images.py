"""Images that are chosen, or built, for sandboxes, in the place of those of their specs."""

from collections.abc import Awaitable, Callable

import msgspec

from agentsvc.plugin import Capability, ImageBuild, Spec
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.table import SandboxTable


class Images(msgspec.Struct, eq=False):
    """Has backends build and remove images, and knows which sandboxes run in one."""

    calls: BackendCalls
    table: SandboxTable

    def can_use(self, spec: Spec) -> bool:
        """Say whether sandboxes of a spec can run in another image."""
        return Capability.IMAGES in self.calls.registry.get(spec.backend).capabilities

    async def build(self, spec: Spec, image_id: str, build: ImageBuild) -> str:
        """Build an image for sandboxes of a spec and return its name.

        Raises OrderRejected with what was said last where it cannot be built.
        """
        return await self.calls.until_done(
            spec.backend, lambda backend: backend.build_image(image_id, build)
        )

    async def remove_unused(
        self, backend: str, used: Callable[[], Awaitable[frozenset[str]]]
    ) -> None:
        """Remove the images that are neither used nor the base of a sandbox.

        What is used is asked for after what there is, so that nothing new is taken for unused.
        """
        async with self.calls.to(backend) as lent:
            there = frozenset(await lent.images())
            if not (unnamed := there - await used()):
                return
            bases = {base.rpartition(":")[2] for base in await self.table.bases()}
            for image_id in unnamed - bases:
                await lent.remove_image(image_id)
