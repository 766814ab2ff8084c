"""Listeners for changes of sandboxes, and waiting for the next change of one sandbox."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from agentsvc.sandboxes.state import Sandbox

type OnChange = Callable[[Sandbox, Sandbox | None], None]
type Find = Callable[[], Awaitable[Sandbox | None]]


class ChangeListeners:
    """Notifies listeners of every committed change, and wakes waiting tasks."""

    def __init__(self) -> None:
        self._listeners: list[OnChange] = []
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def listen(self, listener: OnChange) -> None:
        """Call `listener(before, after)` after each change; after is None once deleted."""
        self._listeners.append(listener)

    def announce(self, before: Sandbox, after: Sandbox | None) -> None:
        """Notify listeners of a change; call it after the change's transaction has committed."""
        for event in self._waiting.get(before.id, ()):
            event.set()
        for listener in self._listeners:
            listener(before, after)

    async def wait_for(
        self,
        sandbox_id: str,
        find: Find,
        is_enough: Callable[[Sandbox | None], bool],
        *,
        time_limit: float,
    ) -> Sandbox | None:
        """Return the result of `find` once `is_enough` accepts it, or at the time limit."""
        changed = asyncio.Event()
        self._waiting[sandbox_id].add(changed)
        try:
            async with asyncio.timeout(time_limit):
                while True:
                    changed.clear()
                    sandbox = await find()
                    if is_enough(sandbox):
                        return sandbox
                    await changed.wait()
        except TimeoutError:
            return await find()
        finally:
            self._waiting[sandbox_id].discard(changed)
            if not self._waiting[sandbox_id]:
                del self._waiting[sandbox_id]
