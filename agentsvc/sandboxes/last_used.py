"""Tracks when each sandbox was last used; flushed to the database periodically.

Use is what agents and people do: messages, events, requests to work ports, terminals that are
open. To look whether something has happened is none.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from agentsvc.base import now


class ActivityTracker:
    """Remembers what was used, and knows what is in use."""

    def __init__(self) -> None:
        self.since = now()
        """From when on it knows; the server did not see what was used before."""
        self._latest: dict[str, datetime] = {}
        self._in_use: Counter[str] = Counter()
        self._stored: dict[str, datetime] = {}

    def note(self, sandbox_id: str | None) -> None:
        """Note that a sandbox is being used now."""
        if sandbox_id is not None:
            self._latest[sandbox_id] = now()

    @contextmanager
    def hold(self, sandbox_id: str) -> Iterator[None]:
        """Let a sandbox count as used for as long as this lasts."""
        self._in_use[sandbox_id] += 1
        try:
            yield
        finally:
            self._in_use[sandbox_id] -= 1
            if not self._in_use[sandbox_id]:
                del self._in_use[sandbox_id]
            self.note(sandbox_id)

    def latest(self, sandbox_id: str, stored: datetime) -> datetime:
        """Return when a sandbox was last used, given what is stored about it."""
        if sandbox_id in self._in_use:
            return now()
        noted = max(self._latest.get(sandbox_id, stored), self._stored.get(sandbox_id, stored))
        return max(noted, stored)

    def begin_flush(self) -> Mapping[str, datetime]:
        """Return what is to be stored; it is remembered until the next one."""
        for sandbox_id in self._in_use:
            self.note(sandbox_id)
        self._stored, self._latest = self._latest, {}
        return self._stored

    def restore(self, moments: Mapping[str, datetime]) -> None:
        """Keep what could not be stored for the next time."""
        self._latest = {**moments, **self._latest}
