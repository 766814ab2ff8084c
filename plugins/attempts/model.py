"""The stored form of attempts. Pure."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.base import matching
from agentsvc.extension.conversations import Provider, SentBranch, SentRepository

from .config import MAX

LEAST: Final = 2
_TITLE: Final = 100

type Task = Annotated[str, matching(r"\A[^\0]*\S[^\0]*\Z", "some text", max_length=150_000)]
type Title = Annotated[
    str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", min_length=1, max_length=200)
]
type ModelName = Annotated[
    str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", min_length=1, max_length=256)
]
type Id = Annotated[
    str,
    matching(
        "^[0-9A-Fa-f]{8}(-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12}$",
        "a UUID, with or without dashes",
        max_length=36,
    ),
]
type Command = Annotated[str, matching(r"\A[^\0]*\S[^\0]*\Z", "a command", max_length=16 * 1024)]


class AttemptStatus(StrEnum):
    """The status of an attempt."""

    QUEUED = "queued"
    """Its conversation is not created yet"""
    STARTING = "starting"
    """Its conversation starts"""
    RUNNING = "running"
    """Its agent works, or its tests run"""
    FINISHED = "finished"
    """Its agent has finished its work"""
    FAILED = "failed"
    """Its conversation did not start, or its agent has failed; `detail` says why"""
    CANCELLED = "cancelled"
    """It was stopped; `detail` says why"""
    CHOSEN = "chosen"
    """It was chosen: its conversation continues like any other"""
    DISCARDED = "discarded"
    """Another one was chosen: its conversation is deleted, with its sandbox"""


OPEN: Final = (AttemptStatus.QUEUED, AttemptStatus.STARTING, AttemptStatus.RUNNING)
"""The statuses of attempts that have not ended."""


class AttemptOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One task, and the models and files for its attempts."""

    message: Task
    """Message to each agent"""
    title: Title | None = None
    """Title of the conversations; null: the beginning of the task"""
    count: Annotated[int, Meta(ge=LEAST, le=MAX)] | None = None
    """Number of attempts, at most as many as the server allows; null: one for each of `models`"""
    models: Annotated[list[ModelName], Meta(max_length=MAX)] = []
    """Names of saved models, or of models as the settings name them, assigned to the attempts in turn;
    empty: all use the model of the settings"""
    conversation_id: Id | None = None
    """Id of the conversation to fork for each attempt, with or without dashes; null: new conversations"""
    up_to_event_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Last event of the history to include in forks; null: all events"""
    repository: SentRepository | None = None
    """Repository of new conversations: `owner/name`, or a URL; null: none"""
    branch: SentBranch | None = None
    """Branch of the repository; null: the default branch"""
    provider: Provider | None = None
    """Git host of the repository; null: a host that the user has a token for and that has the repository"""
    environment_id: Id | None = None
    """Prepared environment of new conversations; null: the one of their repository"""
    test_command: Command | None = None
    """Shell command to run in the workspace of each attempt whose agent has finished; null: none"""
    budget: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """US dollars that all attempts may cost together; null: the limit of the settings for each"""

    def with_plain_ids(self) -> "AttemptOrder":
        """Return the order with ids normalized to 32 hex digits."""
        ids = {"conversation_id": self.conversation_id, "environment_id": self.environment_id}
        plain = {name: one and one.replace("-", "").lower() for name, one in ids.items()}
        return msgspec.structs.replace(self, **plain)

    @property
    def name(self) -> str:
        """The title of the chosen conversation."""
        return self.title or " ".join(self.message.split())[:_TITLE]

    @property
    def size(self) -> int:
        """The number of attempts."""
        return self.count or len(self.models)


class AttemptSet(msgspec.Struct, frozen=True, kw_only=True):
    """A stored task."""

    id: str
    user_id: str
    definition: AttemptOrder
    created_at: datetime
    stop: str = ""
    """Why its attempts were stopped; empty if they were not."""
    is_over_budget: bool = False
    chosen: int | None = None
    is_deleted: bool = False
    """Whether it was deleted, and only its conversations remain to be deleted."""
    completed_at: datetime | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A stored attempt."""

    set_id: str
    number: int
    conversation_id: str
    """Id of its conversation, set before that exists."""
    model: str | None
    status: AttemptStatus = AttemptStatus.QUEUED
    detail: str = ""
    base: str = ""
    """Id of the git tree of its files at the start; empty without a repository."""
    outcome: AttemptStatus | None = None
    """Its status once it is measured; None while its agent works."""
    files: int | None = None
    additions: int | None = None
    deletions: int | None = None
    exit_code: int | None = None
    output: str = ""
    """The end of its tests' output."""
    cost: float | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_settled: bool = False
    """Whether its conversation was renamed or deleted after the choice."""

    @property
    def task_name(self) -> str:
        """The name of its background task."""
        return f"attempt {self.conversation_id}"
