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

    def lasts(self, sandbox_id: str | None) -> bool:
        """Whether one has been silent for so long that what it does counts as unknown."""
        since = self._since.get(sandbox_id or "")
        return since is not None and monotonic() - since >= self._longest_seconds
