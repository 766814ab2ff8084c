"""An agent server whose agents commit, for what the server fetches out of sandboxes."""

import asyncio
import shutil
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from agentsvc.agentserver.responses import CommandResult
from tests.git_server import run_git
from tests.troubles import TroubledAgent

_IDENTITY: Final = ("-c", "user.name=Agent", "-c", "user.email=agent@example.com")


class CommittingAgent(TroubledAgent):
    """Has a clone of each repository that a sandbox was given, and commits files when it is fetched."""

    def __init__(self, room: Path) -> None:
        super().__init__()
        self._room = room / "clones"
        self._lock = asyncio.Lock()
        self.files: dict[str, Any] = {}
        self.on_command("bundle create", CommandResult(exit_code=0, stdout="", stderr=""))

    def take_files(self, repository: str) -> dict[str, Any]:
        """Return what is committed to a repository now, by name."""
        del repository
        files, self.files = self.files, {}
        return files

    async def get_download(self, request: web.Request) -> web.Response:
        path = request.query["path"]
        if not path.endswith("/.git/agentsvc.bundle"):
            return await super().get_download(request)
        place = path.removesuffix("/.git/agentsvc.bundle")
        async with self._lock:
            return web.Response(body=await self._bundle(place, place.rpartition("/")[2]))

    async def _bundle(self, place: str, repository: str) -> bytes:
        clone = self._room / repository
        if not clone.exists():
            await self._unpack(place, clone)
        files = self.take_files(repository)
        for name, text in files.items():
            path = clone / name
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True)
            await asyncio.to_thread(path.write_text, text)
        if files:
            await run_git("add", "--all", cwd=clone)
            await run_git(*_IDENTITY, "commit", "--quiet", "-m", "Work", cwd=clone)
        bundle = clone.with_suffix(".bundle")
        await run_git("bundle", "create", str(bundle), "HEAD", "^base", cwd=clone)
        return await asyncio.to_thread(bundle.read_bytes)

    async def _unpack(self, place: str, clone: Path) -> None:
        packs = [
            sandbox.files[f"{place}.pack.tar"]
            for sandbox in self.sandboxes.values()
            if f"{place}.pack.tar" in sandbox.files
        ]
        file = clone.with_suffix(".tar")
        await asyncio.to_thread(self._room.mkdir, exist_ok=True)
        await asyncio.to_thread(file.write_bytes, packs[-1])
        await run_git("init", "--quiet", str(clone))
        await asyncio.to_thread(shutil.unpack_archive, file, clone / ".git", filter="data")
        base = (await asyncio.to_thread((clone / ".git/shallow").read_text)).strip()
        await run_git("tag", "base", base, cwd=clone)
        await run_git("checkout", "--quiet", "base", cwd=clone)
