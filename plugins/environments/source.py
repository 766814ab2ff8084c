"""The repository of an environment, fetched by the server, and its `devcontainer.json`."""

import msgspec

from agentsvc.base import StartRefused
from agentsvc.extension.git import Checkout, DefaultBranch

from .devcontainer import MAX_BYTES, PLACES, Devcontainer, beside, parse
from .model import AUTO, NONE, Container


class Source:
    """One fetched commit of a repository."""

    def __init__(self, checkout: Checkout, head: DefaultBranch) -> None:
        self.checkout = checkout
        self.head = head

    async def find_devcontainer(self, wanted: str) -> "DevcontainerFile | None":
        """Return the `devcontainer.json` that a definition selects, or None.

        Raises StartRefused if the named file does not exist or is invalid.
        """
        if wanted == NONE:
            return None
        for path in PLACES if wanted == AUTO else (wanted,):
            content = await self.checkout.read(self.head.commit, path, MAX_BYTES)
            if content is not None:
                return DevcontainerFile(path, *parse(content, path))
        if wanted != AUTO:
            raise StartRefused(f"The repository has no file `{wanted}`")
        return None

    async def text(self, path: str, max_bytes: int) -> str:
        """Return the text of a file; raises StartRefused if it does not exist."""
        content = await self.checkout.read(self.head.commit, path, max_bytes)
        if content is None:
            raise StartRefused(f"The repository has no file `{path}`")
        return content.decode(errors="replace")


class DevcontainerFile(msgspec.Struct, frozen=True):
    """A `devcontainer.json` of a repository."""

    path: str
    says: Devcontainer
    left_out: list[str]
    """Names of its unsupported properties."""

    @property
    def files(self) -> tuple[str, ...]:
        """Other files that affect the image."""
        dockerfile = self.says.built.dockerfile
        return (beside(self.path, dockerfile),) if dockerfile else ()

    def to_container(self, *, has_images: bool) -> Container:
        """Return its additions to a workspace; `note` lists ignored properties."""
        image = (
            []
            if has_images
            else [f"{one} (the backend has no images)" for one in self.says.of_image]
        )
        left_out = [*image, *self.left_out]
        exports = self.says.exports
        return Container(
            exports="\n".join(exports),
            set_up="\n".join(self.says.set_up),
            each_start="\n".join(self.says.each_start),
            files=(self.path, *self.files),
            note=f"Left out of `{self.path}`: {', '.join(left_out)}" if left_out else "",
        )
