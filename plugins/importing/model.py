"""Records of an import: the items found and their results. Pure."""

from datetime import datetime
from enum import StrEnum

import msgspec

from agentsvc.extension.history import ExecutionStatus, Generation, Metrics, Provider, Trigger


class ImportResult(StrEnum):
    """The result of one item."""

    IMPORTED = "imported"
    PRESENT = "present"
    """It exists already."""
    SKIPPED = "skipped"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the report: one item, its result, and notes."""

    kind: str
    name: str
    outcome: ImportResult
    title: str = ""
    events: int = 0
    notes: tuple[str, ...] = ()


class Unreadable(Exception):
    """An item cannot be imported; the text is the reason, for users."""


class ImportedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of another server, without its events."""

    generation: Generation
    directory: str
    """Path of its events, below the imported directory."""
    source_id: str
    """Its id at the other server."""
    id: str
    """Its id at this server: 32 hex digits."""
    title: str | None = None
    selected_repository: str | None = None
    selected_branch: str | None = None
    git_provider: Provider | None = None
    trigger: Trigger | None = None
    pr_number: tuple[int, ...] = ()
    llm_model: str | None = None
    agent_kind: str = "openhands"
    metrics: Metrics | None = None
    parent_id: str | None = None
    is_public: bool | None = None
    tags: dict[str, str] = {}
    execution_status: ExecutionStatus | None = None
    max_budget: float | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None
    notes: tuple[str, ...] = ()

    @property
    def alias(self) -> str | None:
        """Its former id, if that is not a UUID."""
        return None if self.source_id.replace("-", "").lower() == self.id else self.source_id


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The converted events of a conversation, oldest first."""

    bodies: list[bytes]
    count: int
    """Number of the original events."""
    notes: tuple[str, ...] = ()
    first_at: datetime | None = None
    last_at: datetime | None = None
