"""Images chosen or built for sandboxes, in place of the image of their spec."""

from collections.abc import Awaitable, Callable

import msgspec

from agentsvc.plugin import Capability, ImageBuild, Spec
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.table import SandboxTable


class Images(msgspec.Struct, eq=False):
    """Builds and removes images at backends; keeps those that sandboxes run in."""

    calls: BackendCalls
    table: SandboxTable

    def can_use(self, spec: Spec) -> bool:
        """Return whether sandboxes of a spec can run in another image."""
        return Capability.IMAGES in self.calls.registry.get(spec.backend).capabilities

    async def build(self, spec: Spec, image_id: str, build: ImageBuild) -> str:
        """Build an image for sandboxes of a spec and return its name.

        Raises OrderRejected with the last output of a build that failed.
        """
        return await self.calls.retry_while_fetching(
            spec.backend, lambda backend: backend.build_image(image_id, build)
        )

    async def remove_unused(
        self, backend: str, used: Callable[[], Awaitable[frozenset[str]]]
    ) -> None:
        """Remove the images that are neither used nor the base of a sandbox.

        Calls `used` after listing the images, so that a new image does not count as unused.
        """
        async with self.calls.to(backend) as lent:
            there = frozenset(await lent.images())
            if not (unnamed := there - await used()):
                return
            bases = {base.rpartition(":")[2] for base in await self.table.bases()}
            for image_id in unnamed - bases:
                await lent.remove_image(image_id)
