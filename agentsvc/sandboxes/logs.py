"""Logs of sandboxes, with secrets masked."""

from typing import Final

from agentsvc.base import NotFound
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.registry import BackendRegistry
from agentsvc.sandboxes.state import Sandbox

MAX_LINES: Final = 1000


async def read_output(
    registry: BackendRegistry, sandbox: Sandbox, *, lines: int, time_limit: float
) -> list[str]:
    """Return the last lines a sandbox wrote, oldest first.

    Raises NotFound for one that was never made, Unsupported, BackendUnavailable or BackendBroken.
    """
    if sandbox.handle is None:
        raise NotFound("The sandbox was never made, so there is nothing that it wrote")
    async with BackendCalls(registry, time_limit).to(sandbox.backend) as backend:
        found = backend.logs(sandbox.handle, tail=lines, follow=False)
        return [line.text async for line in found]
