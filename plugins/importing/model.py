"""Records of an import: what was found and what became of it. Pure."""

from datetime import datetime
from enum import StrEnum

import msgspec

from agentsvc.extension.history import ExecutionStatus, Generation, Metrics, Provider, Trigger


class ImportResult(StrEnum):
    """What became of one thing."""

    IMPORTED = "imported"
    PRESENT = "present"
    """It is here already."""
    SKIPPED = "skipped"


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the report: one thing, what became of it, and what is to be said about that."""

    kind: str
    name: str
    outcome: ImportResult
    title: str = ""
    events: int = 0
    notes: tuple[str, ...] = ()


class Unreadable(Exception):
    """Something cannot be taken over; the text says why, for people."""


class ImportedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation of another server, without its events."""

    generation: Generation
    directory: str
    """Where its events are, below the directory that is imported."""
    source_id: str
    """What it is called there."""
    id: str
    """What it is called here: 32 hex digits."""
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
        """The name it had there, where that is no UUID."""
        return None if self.source_id.replace("-", "").lower() == self.id else self.source_id


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The events of a conversation as they are stored here, oldest first."""

    bodies: list[bytes]
    count: int
    """How many events these were there."""
    notes: tuple[str, ...] = ()
    first_at: datetime | None = None
    last_at: datetime | None = None
