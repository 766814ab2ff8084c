"""Builds images for sandboxes, and removes them.

A build runs in the background, once per engine and image. The engine aborts it if the connection
breaks; leftovers carry the labels, which are set first in each stage.
"""

import asyncio
import io
import re
import tarfile
from collections import deque
from pathlib import Path
from typing import Final

from agentsvc.base import OrderRejected
from agentsvc.plugin import ImageBuild, LongTasks

from . import names
from .engine import Engine, Json
from .failures import one_line
from .images import work

_FROM: Final = re.compile(r"\s*FROM\s", re.IGNORECASE)
_DOCKERFILE: Final = ".agentsvc-dockerfile"
_UNNAMED: Final = "<none>:<none>"
_LAST_LINES: Final = 20


class Builds:
    """The running builds of one installation."""

    def __init__(self, instance_id: str, wait_seconds: float) -> None:
        self._instance_id = instance_id
        self._wait_seconds = wait_seconds
        self._running = LongTasks()

    async def close(self) -> None:
        """Cancel every build."""
        await self._running.close()

    async def build(self, engine: Engine, image_id: str, build: ImageBuild) -> None:
        """Build an image unless it exists; raises as `RuntimeBackend.build_image`."""
        name = f"{engine.name} {image_id}"
        path = f"images/{names.image(image_id)}/json"
        if name in self._running or await engine.get(path) is None:
            await self._running.go_on(
                name,
                lambda: self._run(engine, image_id, build),
                wait_seconds=self._wait_seconds,
                message="The image is being built",
            )
        else:
            # Nobody waited for the end of the build that created the image.
            await self._running.abandon(name)

    async def listed(self, engine: Engine) -> dict[str, list[str]]:
        """Return the ids of an engine's built images, by the image id of the build."""
        found: dict[str, list[str]] = {}
        for one in await engine.listed("images", names.of_installation(self._instance_id)):
            labels = one.get("Labels") or {}
            image_id = labels.get(names.IMAGE, "")
            # An image made from such a container has its labels, but another name.
            others = {*(one.get("RepoTags") or ())} - {_UNNAMED, names.image(image_id)}
            is_ours = labels.get(names.INSTALLATION) == self._instance_id
            if image_id and is_ours and not others:
                found.setdefault(image_id, []).append(one["Id"])
        return found

    async def remove(self, engine: Engine, image_id: str) -> None:
        """Remove an image and leftovers of its build, unless it is in use or being built."""
        name = f"{engine.name} {image_id}"
        if name in self._running:
            return
        await self._running.abandon(name)
        for found in (await self.listed(engine)).get(image_id, ()):
            await engine.remove(f"images/{found}")

    async def _run(self, engine: Engine, image_id: str, build: ImageBuild) -> None:
        labels = names.of_image(self._instance_id, image_id)
        text = labelled(build.dockerfile, labels)
        await asyncio.to_thread(_add_dockerfile, build.context, text)
        query = {
            "t": names.image(image_id),
            "dockerfile": _DOCKERFILE,
            "buildargs": build.args,
            "labels": labels,
            "target": build.target,
            "forcerm": True,
        }
        last: deque[str] = deque(maxlen=_LAST_LINES)
        try:
            async with asyncio.timeout(build.time_limit):
                await self._follow(engine, query, build.context, last)
        except TimeoutError as exc:
            text = f"Building the image took longer than {build.time_limit:g} s"
            raise OrderRejected(text, detail="\n".join(last)) from exc

    async def _follow(self, engine: Engine, query: Json, context: Path, last: deque[str]) -> None:
        def explain(_status: int, message: str) -> OrderRejected:
            text = f"The image cannot be built: {one_line(message)}"
            return OrderRejected(text, detail="\n".join(last))

        headers = {"Content-Type": "application/x-tar"}
        with await asyncio.to_thread(context.open, "rb") as data:
            async for news in work(engine, "build", query, explain, headers=headers, data=data):
                last.extend(str(news.get("stream", "")).splitlines())


def labelled(dockerfile: str, labels: dict[str, str]) -> str:
    """Return the Dockerfile with the labels at the start of each stage."""
    label = "LABEL " + " ".join(f'{name}="{value}"' for name, value in labels.items())
    lines: list[str] = []
    is_continued = is_from = False
    for line in dockerfile.splitlines():
        lines.append(line)
        if is_continued and (not line.strip() or line.lstrip().startswith("#")):
            continue
        is_from = is_from if is_continued else bool(_FROM.match(line))
        is_continued = line.rstrip().endswith("\\")
        if is_from and not is_continued:
            lines.append(label)
    return "\n".join([*lines, ""])


def _add_dockerfile(context: Path, dockerfile: str) -> None:
    info, content = tarfile.TarInfo(_DOCKERFILE), dockerfile.encode(errors="surrogateescape")
    info.size, info.mode = len(content), 0o644
    with tarfile.open(context, "a") as archive:
        archive.addfile(info, io.BytesIO(content))
