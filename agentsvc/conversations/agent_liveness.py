"""Tracks agent servers that have stopped answering, and since when."""

from agentsvc.base import monotonic


class AgentLiveness:
    """The sandboxes whose agent servers did not answer the last probe."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest_seconds = longest_seconds
        self._since: dict[str, float] = {}

    def note(self, sandbox_id: str, *, is_alive: bool, asked_at: float) -> None:
        """Store the result of a probe that was sent at `asked_at`, by the monotonic clock."""
        if is_alive:
            self._since.pop(sandbox_id, None)
        else:
            self._since.setdefault(sandbox_id, asked_at)

    def forget(self, sandbox_id: str) -> None:
        """Drop the state of a sandbox that is gone or was restarted."""
        self._since.pop(sandbox_id, None)

    def all(self) -> set[str]:
        """Return the ids of the sandboxes that did not answer the last probe."""
        return set(self._since)

    def silent(self) -> set[str]:
        """Return the ids of the sandboxes that have not answered for `longest_seconds`."""
        latest = monotonic() - self._longest_seconds
        return {sandbox_id for sandbox_id, since in self._since.items() if since <= latest}
