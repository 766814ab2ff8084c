"""Layers: images with the home and working directory of a sandbox, which others start from.

New sandboxes share the image's files, and the engine copies what they change. The files get into
the image through this server: an archive from the sandbox's container is unpacked in a new
container of the same base image, which never runs and is then committed. So this needs only the API
of any kind of engine, and the image has nothing of the old container's configuration.

A removed layer is *passing* as long as containers use its image.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import product
from typing import Final

from agentsvc.base import Conflict, OrderRejected
from agentsvc.plugin import LongTasks, finish, is_below

from . import inspection, names
from .engine import Engine
from .failures import CONFLICT, NOT_FOUND
from .plan import ImageInfo, Json, to_image
from .transfer import Transfer, paths_of

_ID: Final = re.compile(r"[a-z0-9]{1,64}")
_COMMIT_SECONDS: Final = 1800.0


class Layers:
    """The layers of one installation, on all its engines."""

    def __init__(self, instance_id: str) -> None:
        self._instance_id = instance_id
        self._running = LongTasks()

    async def close(self) -> None:
        """Cancel running copies; `sweep` removes what they leave."""
        await self._running.close()

    async def find(self, engine: Engine, layer_id: str) -> ImageInfo | None:
        """Return the image of a layer, or None."""
        return await self._find(engine, _name_of(layer_id))

    async def keep(
        self,
        engine: Engine,
        layer_id: str,
        find_source: Callable[[], Awaitable[Json]],
        *,
        max_bytes: int,
    ) -> int:
        """Create a layer from the files of a stopped container; return their size in bytes.

        Raises StillFetching until it is complete, OrderRejected if the files are too large. The
        source is inspected only once, because Docker does not respond for a container that it is
        archiving.
        """
        name = _name_of(layer_id)

        async def make() -> int:
            if (found := await self._find(engine, name)) is not None:
                return int(found.labels.get(names.BYTES, "0"))
            source = await find_source()
            labels = {
                names.INSTALLATION: self._instance_id,
                names.ROLE: "layer",
                names.LAYER: layer_id,
            }
            return await _make_image(engine, source, name, labels, max_bytes)

        return await self._running.go_on(f"{engine.name} {name}", make)

    async def ids(self, engine: Engine) -> set[str]:
        """Return the ids of the layers, after removing partial ones and unused passing ones."""
        await self.sweep(engine)
        return {
            one["Labels"][names.LAYER]
            for one in await self._images(engine)
            if names.layer(one["Labels"].get(names.LAYER, "")) in _tags(one)
        }

    async def remove(self, engine: Engine, layer_id: str) -> None:
        """Remove a layer; its image stays as long as containers use it."""
        name = _name_of(layer_id)
        if await self._find(engine, name) is None:
            return
        repository, _, tag = names.passing(layer_id).rpartition(":")
        query = {"repo": repository, "tag": tag}
        await engine.ask("POST", f"images/{name}/tag", params=query, expect=(NOT_FOUND,))
        await engine.ask("DELETE", f"images/{name}", expect=(NOT_FOUND,))
        await self.sweep(engine)

    async def sweep(self, engine: Engine) -> None:
        """Remove passing images that no container uses, and leftovers of cancelled copies."""
        for one in await engine.listed("containers", names.of_installation(self._instance_id)):
            labels = one.get("Labels") or {}
            if self._is_layers(labels) and not self._is_running(engine, labels.get(names.MADE_FOR)):
                await _remove_container(engine, one["Id"])
        for one in await self._images(engine):
            tags = _tags(one)
            if all(names.is_passing(tag) and not self._is_running(engine, tag) for tag in tags):
                for reference in tags or [one["Id"]]:
                    await engine.remove(f"images/{reference}")

    def _is_running(self, engine: Engine, name: str | None) -> bool:
        return f"{engine.name} {name}" in self._running

    async def _images(self, engine: Engine) -> list[Json]:
        found = await engine.listed("images", names.of_installation(self._instance_id))
        return [one for one in found if self._is_layers(one.get("Labels") or {})]

    def _is_layers(self, labels: Mapping[str, str]) -> bool:
        is_ours = labels.get(names.INSTALLATION) == self._instance_id
        return is_ours and labels.get(names.ROLE) == "layer"

    async def _find(self, engine: Engine, name: str) -> ImageInfo | None:
        found = await engine.get(f"images/{name}/json")
        image = to_image(found or {})
        return image if self._is_layers(image.labels) else None


async def _make_image(
    engine: Engine, source: Json, name: str, labels: Mapping[str, str], max_bytes: int
) -> int:
    """Create an image from a container's files; return their size in bytes."""
    paths = await paths_of(engine, source)
    volumes = (source.get("Config") or {}).get("Volumes") or {}
    for path, volume in product(paths, volumes):
        if is_below(path, volume) or is_below(volume, path):
            raise OrderRejected(f"The image has a volume at {path}, whose files cannot be kept")
    # A sandbox that was started from a layer uses that layer's base: layers are not stacked.
    base = inspection.labels_of(source).get(names.BASE) or source["Image"]
    made = await _make_container(
        engine, name, base, {**labels, names.BASE: base, names.MADE_FOR: name}
    )
    transfer = Transfer((engine, source["Id"]), (engine, made), max_bytes)
    try:
        for path in paths:
            await transfer.bring(path)
        repository, _, tag = name.rpartition(":")
        await engine.ask(
            "POST",
            "commit",
            params={
                "container": made,
                "repo": repository,
                "tag": tag,
                "pause": False,
                "changes": f"LABEL {names.BYTES}={transfer.read_bytes}",
            },
            body={},
            time_limit=_COMMIT_SECONDS,
        )
    finally:
        await finish(_remove_container(engine, made))
    return transfer.read_bytes


async def _make_container(
    engine: Engine, image_name: str, base: str, labels: Mapping[str, str]
) -> str:
    image = to_image(await engine.get(f"images/{base}/json") or {})
    if not image.id:
        raise OrderRejected("The image of the sandbox is gone from the engine")
    body = {
        "Image": base,
        # An image labelled as a sandbox's would be treated as one.
        "Labels": {**labels, names.SANDBOX: ""},
        "NetworkDisabled": True,
        "HostConfig": {"NetworkMode": "none"},
        **({} if image.entrypoint or image.command else {"Cmd": ["true"]}),
    }
    name = names.half_made(image_name)
    for _ in range(2):
        made = await engine.ask(
            "POST", "containers/create", params={"name": name}, body=body, expect=(CONFLICT,)
        )
        if made is not None:
            return str(made["Id"])
        # A server that was killed left it.
        await _remove_container(engine, name)
    raise Conflict("The engine has a container of that name", detail=name)


async def _remove_container(engine: Engine, container: str) -> None:
    await engine.remove(f"containers/{container}", force=True, v=True)


def _tags(image: Json) -> list[str]:
    return [tag for tag in image.get("RepoTags") or [] if names.is_layers(tag)]


def _name_of(layer_id: str) -> str:
    if _ID.fullmatch(layer_id) is None:
        raise OrderRejected("The layer's id cannot name an image")
    return names.layer(layer_id)
