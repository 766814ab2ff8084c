"""Tracks when each sandbox was last used; flushed to the database periodically.

Messages, events, requests to work ports and open terminals count as use. Polling for news does
not.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from agentsvc.base import now


class ActivityTracker:
    """In-memory times of last use, and the sandboxes in use now."""

    def __init__(self) -> None:
        self.since = now()
        """When tracking began, at server start; earlier use was not observed."""
        self._latest: dict[str, datetime] = {}
        self._in_use: Counter[str] = Counter()
        self._stored: dict[str, datetime] = {}

    def note(self, sandbox_id: str | None) -> None:
        """Set the time of last use of a sandbox to now."""
        if sandbox_id is not None:
            self._latest[sandbox_id] = now()

    @contextmanager
    def hold(self, sandbox_id: str) -> Iterator[None]:
        """Mark a sandbox as in use inside the context, so that no idle rule applies to it."""
        self._in_use[sandbox_id] += 1
        try:
            yield
        finally:
            self._in_use[sandbox_id] -= 1
            if not self._in_use[sandbox_id]:
                del self._in_use[sandbox_id]
            self.note(sandbox_id)

    def latest(self, sandbox_id: str, stored: datetime) -> datetime:
        """Return when a sandbox was last used; `stored` is the time in the database."""
        if sandbox_id in self._in_use:
            return now()
        noted = max(self._latest.get(sandbox_id, stored), self._stored.get(sandbox_id, stored))
        return max(noted, stored)

    def begin_flush(self) -> Mapping[str, datetime]:
        """Return the times to store; they stay visible to `latest` until the next flush."""
        for sandbox_id in self._in_use:
            self.note(sandbox_id)
        self._stored, self._latest = self._latest, {}
        return self._stored

    def restore(self, moments: Mapping[str, datetime]) -> None:
        """Put back times that could not be stored, for the next flush."""
        self._latest = {**moments, **self._latest}
