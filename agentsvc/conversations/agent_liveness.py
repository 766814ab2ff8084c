"""Tracks agent servers that stopped answering, and for how long."""

from agentsvc.base import monotonic


class AgentLiveness:
    """The sandboxes whose agent servers gave no answer when they were asked last."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._since: dict[str, float] = {}

    def note(self, sandbox_id: str, *, is_alive: bool, asked_at: float) -> None:
        """Keep whether one has answered what it was asked then, by the monotonic clock."""
        if is_alive:
            self._since.pop(sandbox_id, None)
        else:
            self._since.setdefault(sandbox_id, asked_at)

    def forget(self, sandbox_id: str) -> None:
        """Know nothing any more of one that is gone, or begins anew."""
        self._since.pop(sandbox_id, None)

    def all(self) -> set[str]:
        """Return those that gave no answer when they were asked last."""
        return set(self._since)

    def silent(self) -> set[str]:
        """Return those that have been silent for so long that what they do counts as unknown."""
        latest = monotonic() - self._longest_seconds
        return {sandbox_id for sandbox_id, since in self._since.items() if since <= latest}
