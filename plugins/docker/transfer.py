"""Finds a sandbox's directories, and copies them into another container through this server."""

import math
from collections.abc import AsyncIterator
from typing import Final

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected
from agentsvc.plugin import kept_directories

from . import inspection
from .engine import Engine
from .failures import NOT_FOUND
from .plan import Json, home_in, workspace_archive
from .streams import read_file

_END: Final = bytes(1024)
"""The end marker of an archive."""


async def paths_of(engine: Engine, container: Json, *, may_have_state: bool = False) -> list[str]:
    """Return home and working directory of a container's sandbox, as `kept_directories` does."""
    settings = container.get("Config") or {}
    env = dict(entry.partition("=")[::2] for entry in settings.get("Env") or [])
    work = inspection.labels_of(container).get("agentsvc.workdir", "")
    home = env.get("HOME")
    if not home:
        passwd = await read_file(engine, container["Id"], "/etc/passwd")
        home = home_in(settings.get("User") or "", passwd)
    return kept_directories(env, work, home, may_have_state=may_have_state)


class Transfer:
    """Copies directories from a container into a stopped one, and counts their bytes."""

    def __init__(
        self, source: tuple[Engine, str], target: tuple[Engine, str], max_bytes: float = math.inf
    ) -> None:
        self.read_bytes = 0
        self._source_engine, self._source = source
        self._target_engine, self._target = target
        self._max_bytes = max_bytes

    async def bring(self, path: str) -> None:
        """Copy one directory, if it exists; raises OrderRejected above the size limit."""
        # Request the content, not the directory: Podman archives a volume's directory under another
        # name.
        query = {"path": f"{path}/."}
        source = f"containers/{self._source}/archive"
        async with self._source_engine.stream(
            "GET", source, params=query, expect=(NOT_FOUND,)
        ) as answer:
            if answer is None:
                return
            await self._make_directory(path)
            last = bytearray()

            async def parts() -> AsyncIterator[bytes]:
                async for part in answer.content.iter_any():
                    self.read_bytes += len(part)
                    if self._is_too_large:
                        return
                    last.extend(part)
                    del last[: -len(_END)]
                    yield part

            await self._unpack(path, parts(), last)

    async def _make_directory(self, path: str) -> None:
        engine, to = self._target_engine, f"containers/{self._target}/archive"
        if await engine.ask("HEAD", to, params={"path": path}, expect=(NOT_FOUND,)) is None:
            archive = workspace_archive((0, 0), [], top=path.strip("/"))
            await engine.put(self._target, "/", archive)

    async def _unpack(self, path: str, parts: AsyncIterator[bytes], last: bytearray) -> None:
        to, query = f"containers/{self._target}/archive", {"path": path}
        refused: AgentsvcError | None = None
        try:
            async with self._target_engine.stream("PUT", to, params=query, data=parts) as answer:
                if answer is not None:
                    await answer.read()
        except AgentsvcError as exc:
            refused = exc
        if self._is_too_large:
            raise OrderRejected(f"The files take more than the {self._max_bytes} bytes of a layer")
        if refused is not None:
            raise refused
        if last != _END:
            raise BackendUnavailable("The engine did not send all of the files", detail=path)

    @property
    def _is_too_large(self) -> bool:
        return self.read_bytes > self._max_bytes
