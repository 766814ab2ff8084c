"""Listeners for changes of sandboxes, and waiters for the next change of one."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable

from agentsvc.sandboxes.state import Sandbox

type OnChange = Callable[[Sandbox, Sandbox | None], None]
type Find = Callable[[], Awaitable[Sandbox | None]]


class ChangeListeners:
    """Tells listeners of every stored change, and wakes those who wait for one."""

    def __init__(self) -> None:
        self._listeners: list[OnChange] = []
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def listen(self, listener: OnChange) -> None:
        """Call `listener(before, after)` at each change; after is None once deleted."""
        self._listeners.append(listener)

    def announce(self, before: Sandbox, after: Sandbox | None) -> None:
        """Tell of a change; call it after the change's transaction has committed."""
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
        """Return what `find` finds as soon as it is enough, or as it is at the time limit."""
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
