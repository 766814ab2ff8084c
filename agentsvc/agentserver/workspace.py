"""Requests to agent servers about the workspace: files, commands, git, skills."""

import asyncio
import base64
import contextlib
import math
import zlib
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp

from agentsvc.agentserver.calls import AgentCalls
from agentsvc.agentserver.git_listing import changes_command, read_changes
from agentsvc.agentserver.responses import (
    MAX_OUTPUT_CHARS,
    BashPage,
    CommandResult,
    GitChange,
    GitDiff,
    Hooks,
    Output,
    Skills,
    StartedCommand,
    decode,
    to_git_error,
)
from agentsvc.base import AgentsvcError, BadRequest, NotFound, monotonic

PAGE_SIZE: Final = 100

_GIT_SECONDS: Final = 20.0
_FIRST_POLL_SECONDS: Final = 0.01
_LAST_POLL_SECONDS: Final = 0.5
_READ_ON_SECONDS: Final = 5.0
"""How long the output of a command is still read after its time limit."""
_GZIP: Final = 31
_LISTING_BYTES: Final = 16 * MAX_OUTPUT_CHARS


class WorkspaceCalls(AgentCalls):
    """Requests about files, commands, git, skills and hooks."""

    # Files and commands

    async def upload(
        self,
        path: str,
        data: bytes | AsyncIterable[bytes],
        *,
        time_limit: float | None = None,
    ) -> None:
        """Write a file at an absolute path; missing parent directories are created.

        An async iterable is streamed; if it raises, no file is written.
        """
        form = aiohttp.FormData()
        form.add_field("file", data, filename="file", content_type="application/octet-stream")
        await self._call(
            "POST",
            "/api/file/upload?" + urlencode({"path": path}),
            data=form,
            time_limit=time_limit or self._change_seconds,
        )

    async def download(self, path: str, *, time_limit: float | None = None) -> bytes:
        """Return the bytes of a file at an absolute path; raises NotFound."""
        return await self._call(
            "GET",
            "/api/file/download?" + urlencode({"path": path}),
            time_limit=time_limit or self._change_seconds,
        )

    async def receive(
        self, path: str, write: Callable[[bytes], Awaitable[None]], *, time_limit: float
    ) -> None:
        """Stream a file at an absolute path to `write`, in chunks; raises NotFound."""
        where = "/api/file/download?" + urlencode({"path": path})
        await self._call("GET", where, time_limit=time_limit, write=write)

    async def run_command(
        self, command: str, *, cwd: str | None = None, time_limit: float
    ) -> CommandResult:
        """Run a shell command in the sandbox and wait for its end.

        At the time limit the command and its process group are stopped, and the result has
        `timed_out` set. A failed command is a result, not an error.
        """
        order: dict[str, Any] = {"command": command, "timeout": max(1, math.ceil(time_limit))}
        if cwd is not None:
            order["cwd"] = cwd
        end = monotonic() + time_limit
        started = decode(
            StartedCommand,
            await self._call("POST", "/api/bash/start_bash_command", json=order),
        )
        return await self._follow_command(started.id, end)

    async def read_listing(self, command: str, *, time_limit: float) -> str:
        """Return the output of a shell command in the sandbox, such as a list of file names.

        It is transferred compressed, because agent servers read output in chunks, which may end
        within a character. Without gzip, or after a failure or truncation, it is read as it is.
        """
        packed = await self.run_command(f"({command}) | gzip | base64", time_limit=time_limit)
        unpacked = zlib.decompressobj(_GZIP)
        with contextlib.suppress(ValueError, zlib.error):
            text = unpacked.decompress(base64.b64decode(packed.stdout), _LISTING_BYTES)
            if unpacked.eof:
                return text.decode(errors="replace")
        return (await self.run_command(command, time_limit=time_limit)).stdout

    async def _follow_command(self, command_id: str, end: float) -> CommandResult:
        output = Output()
        pause = _FIRST_POLL_SECONDS
        while True:
            await self._read_output(command_id, output, end + _READ_ON_SECONDS)
            if output.exit_code is not None:
                return output.result(timed_out=monotonic() >= end and output.exit_code == -1)
            if monotonic() >= end:
                await self._stop_command(command_id)
                await self._read_output(command_id, output, end + _READ_ON_SECONDS)
                return output.result(timed_out=True)
            await asyncio.sleep(min(pause, max(0.0, end - monotonic())))
            pause = min(pause * 1.3, _LAST_POLL_SECONDS)

    async def _read_output(self, command_id: str, output: "Output", end: float) -> None:
        query: dict[str, Any] = {
            "command_id__eq": command_id,
            "kind__eq": "BashOutput",
            "order__gt": output.last_order,
            "limit": PAGE_SIZE,
        }
        while True:
            page = decode(
                BashPage,
                await self._call("GET", "/api/bash/bash_events/search?" + urlencode(query)),
            )
            output.add(page.items)
            if page.next_page_id in (None, query.get("page_id")) or monotonic() >= end:
                return
            query["page_id"] = page.next_page_id

    async def _stop_command(self, command_id: str) -> None:
        # It may have ended by itself meanwhile.
        with contextlib.suppress(NotFound):
            await self._call("POST", f"/api/bash/bash_commands/{quote(command_id)}/stop")

    # Git

    async def git_changes(self, path: str, *, ref: str | None = None) -> list[GitChange]:
        """Return the files below a directory that differ from a ref, by default the remote branch.

        Empty without a repository. Raises BadRequest for an unknown ref.
        """
        try:
            found = decode(list[GitChange], await self._query_git("changes", path, ref))
        except BadRequest:
            # Agent servers refuse changed files with a space in the name like an unknown ref.
            listed = await self._list_changes(path, ref)
            if not listed:
                raise
            return listed
        is_quoted = any('"' in change.path for change in found)
        return (await self._list_changes(path, ref) if is_quoted else None) or found

    async def _list_changes(self, path: str, ref: str | None) -> list[GitChange] | None:
        """Return the changes that git itself lists, or None if the command fails."""
        try:
            command = changes_command(path, ref)
            result = await self.run_command(command, time_limit=_GIT_SECONDS)
        except AgentsvcError:
            return None
        is_whole = result.exit_code == 0 and not result.truncated
        return read_changes(result.stdout) if is_whole else None

    async def git_diff(self, path: str, *, ref: str | None = None) -> GitDiff:
        """Return the text of a file, by its absolute path, now and in a ref.

        Raises BadRequest for a file that is in neither or larger than 1 MiB, and for an unknown
        ref.
        """
        return decode(GitDiff, await self._query_git("diff", path, ref))

    async def _query_git(self, what: str, path: str, ref: str | None) -> bytes:
        query = {"path": path} if ref is None else {"path": path, "ref": ref}
        where = f"/api/git/{what}?" + urlencode(query)
        return await self._call("GET", where, explain=to_git_error)

    # Skills and hooks

    async def load_skills(
        self, project_dir: str, *, load_public: bool = False, load_project: bool = True
    ) -> list[dict[str, Any]]:
        """Return the skills that the agent server finds for a project directory.

        Only `load_public` makes the sandbox use the network.
        """
        order = {
            "load_public": load_public,
            "load_user": True,
            "load_project": load_project,
            "load_org": False,
            "project_dir": project_dir,
            "sandbox_config": None,
        }
        return decode(Skills, await self._call("POST", "/api/skills", json=order)).skills

    async def load_hooks(self, project_dir: str) -> dict[str, Any] | None:
        """Return the hook configuration of a project directory, or None if it has none."""
        answer = await self._call("POST", "/api/hooks", json={"project_dir": project_dir})
        return decode(Hooks, answer).hook_config
