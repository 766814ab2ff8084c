"""Checks whether the sandbox of a start still works, and explains to users why not."""

from agentsvc.base import StartRefused
from agentsvc.conversations.starting.failure import explain_sandbox
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.states import Start
from agentsvc.sandboxes import Sandbox, SandboxStatus


class SandboxChecks:
    """Checks the sandboxes of starts."""

    def __init__(self, parts: StartParts) -> None:
        self._sandboxes = parts.sandboxes
        self._start_seconds = parts.config.start_seconds

    async def check(self, start: Start) -> None:
        """Raise StartRefused if the sandbox was seen running and has failed or is gone."""
        if start.sandbox is None:
            return
        [seen] = await self._sandboxes.find_many(start.task.user_id, [start.sandbox.id])
        if seen is None or seen.status in (SandboxStatus.ERROR, SandboxStatus.MISSING):
            raise StartRefused(await self.explain(seen))

    async def explain(self, sandbox: Sandbox | None) -> str:
        """Return why a start cannot continue with a sandbox in its present state."""
        return explain_sandbox(sandbox, await self.log_tail(sandbox), self._start_seconds)

    async def log_tail(self, sandbox: Sandbox | None) -> str:
        """Return the last lines of a sandbox's log; empty without a sandbox."""
        return await self._sandboxes.log_tail(sandbox) if sandbox else ""
