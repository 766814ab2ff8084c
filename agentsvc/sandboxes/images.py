"""Images that are chosen, or built, for sandboxes, in the place of those of their specs."""

from agentsvc.plugin import Capability, Spec
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.layers import Layers


class Images:
    """Knows which backends have images, and has them build some."""

    def __init__(self, calls: BackendCalls, layers: Layers) -> None:
        self._calls = calls
        self._layers = layers

    def can_use(self, spec: Spec) -> bool:
        """Say whether sandboxes of a spec can run in another image."""
        backend = self._calls.registry.get(self._layers.backend_of(spec))
        return Capability.IMAGES in backend.capabilities
