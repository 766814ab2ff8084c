"""The image of an environment: an existing one, or one that is built for it."""

import asyncio
import re
from fnmatch import fnmatchcase
from typing import Final

from agentsvc.base import StartRefused
from agentsvc.extension.environments import ImageBuild, Spec
from agentsvc.extension.server import Sandboxes

from .config import EnvironmentsConfig
from .devcontainer import MAX_BYTES, ImageBuildOptions, beside, fill_args
from .features import add_features, find_features, with_features
from .source import DevcontainerFile, Source

_MAX_CONTEXT: Final = 256 * 1024**2
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,255}")
_SWITCH: Final = (
    "set `build_images = true` in `[environments]` of the server's config,"
    " or the environment's `devcontainer` to `none`"
)


class ImageMaker:
    """Chooses and builds images of environments."""

    def __init__(self, sandboxes: Sandboxes, config: EnvironmentsConfig) -> None:
        self._images = sandboxes.images
        self._config = config

    async def make(
        self,
        image_id: str,
        spec: Spec,
        named: str | None,
        wanted: tuple[Source, DevcontainerFile] | None,
    ) -> str:
        """Return the image for the sandboxes, empty for the one of their spec; may take long.

        Raises StartRefused if an image may not be used or built, OrderRejected if the build fails.
        """
        build = ImageBuildOptions()
        if wanted is None:
            return self._allowed(named) if named else ""
        source, found = wanted
        if not named:
            build = found.says.built
            named = None if build.dockerfile else found.says.image or None
        image = self._allowed(named) if named else ""
        if not build.dockerfile and not found.says.features:
            return image
        if not self._config.build_images:
            raise StartRefused(f"`{found.path}` requires an image to be built: {_SWITCH}")
        features = await asyncio.to_thread(find_features, self._config.features_dir, found.says)
        directory, dockerfile, target = None, f"FROM {image or spec.image}", ""
        if build.dockerfile:
            directory = beside(found.path, build.context)
            dockerfile = await source.text(beside(found.path, build.dockerfile), MAX_BYTES)
            target = build.target
        commit = source.head.commit
        context = await source.checkout.archive(commit, directory, _MAX_CONTEXT)
        if features:
            await asyncio.to_thread(add_features, context, features)
            dockerfile, target = with_features(dockerfile, target, features), ""
        order = ImageBuild(
            context=context,
            dockerfile=dockerfile,
            args=fill_args(build.args),
            target=target,
            time_limit=self._config.prepare_seconds,
        )
        return await self._images.build(spec, image_id, order)

    def _allowed(self, image: str) -> str:
        full = full_name(image)
        is_name = _NAME.fullmatch(image)
        if not is_name or not any(fnmatchcase(full, one) for one in self._config.images):
            raise StartRefused(
                f"The image {image[:256]!a} may not be used: it matches none of"
                " `images` in `[environments]` of the server's config"
            )
        return image


def full_name(image: str) -> str:
    """Return the name of an image with its registry."""
    first, slash, _ = image.partition("/")
    if not slash:
        return f"docker.io/library/{image}"
    is_registry = "." in first or ":" in first or first == "localhost"
    return image if is_registry else f"docker.io/{image}"
