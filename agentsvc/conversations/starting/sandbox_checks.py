"""Finds out what has become of a start's sandbox, and explains it to users."""

from agentsvc.base import StartRefused
from agentsvc.conversations.starting.failure import explain_sandbox
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.states import Start
from agentsvc.sandboxes import Sandbox, SandboxStatus


class SandboxChecks:
    """Looks at the sandboxes of starts."""

    def __init__(self, parts: StartParts) -> None:
        self._sandboxes = parts.sandboxes
        self._start_seconds = parts.config.start_seconds

    async def check(self, start: Start) -> None:
        """Raise StartRefused where the sandbox of a start is gone or has failed."""
        if start.seen is None:
            return
        [seen] = await self._sandboxes.find_many(start.task.user_id, [start.seen.id])
        if seen is None or seen.status in (SandboxStatus.ERROR, SandboxStatus.MISSING):
            raise StartRefused(await self.explain(seen))

    async def explain(self, sandbox: Sandbox | None) -> str:
        """Return why a start cannot go on with a sandbox as it is now."""
        return explain_sandbox(sandbox, await self.log_tail(sandbox), self._start_seconds)

    async def log_tail(self, sandbox: Sandbox | None) -> str:
        """Return the last lines that a sandbox wrote; empty without one."""
        return await self._sandboxes.log_tail(sandbox) if sandbox else ""
