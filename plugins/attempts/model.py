"""Attempts as they are stored. Pure."""

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
    """How far an attempt is."""

    QUEUED = "queued"
    """Its conversation is to be made"""
    STARTING = "starting"
    """Its conversation starts"""
    RUNNING = "running"
    """Its agent works, or its tests run"""
    FINISHED = "finished"
    """Its agent has done its work"""
    FAILED = "failed"
    """Its conversation did not start, or its agent has failed; `detail` says why"""
    CANCELLED = "cancelled"
    """It was stopped; `detail` says why"""
    CHOSEN = "chosen"
    """It was chosen: its conversation is one as any other"""
    DISCARDED = "discarded"
    """Another one was chosen: its conversation is deleted, with its sandbox"""


OPEN: Final = (AttemptStatus.QUEUED, AttemptStatus.STARTING, AttemptStatus.RUNNING)
"""The attempts that are not over."""


class AttemptOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One task, and with what it is tried."""

    message: Task
    """What each agent is told"""
    title: Title | None = None
    """What the conversations are called; null: as the task begins"""
    count: Annotated[int, Meta(ge=LEAST, le=MAX)] | None = None
    """Number of attempts, at most as many as the server allows; null: one for each of `models`"""
    models: Annotated[list[ModelName], Meta(max_length=MAX)] = []
    """Names of saved models, or of models as the settings name them, which the attempts get in turn;
    empty: all get that of the settings"""
    conversation_id: Id | None = None
    """Conversation that each attempt is a fork of, with or without dashes; null: they are new"""
    up_to_event_id: Annotated[str, Meta(min_length=1, max_length=255)] | None = None
    """Last event of the history that forks get; null: all of it"""
    repository: SentRepository | None = None
    """Repository of new conversations: `owner/name`, or a URL; null: none"""
    branch: SentBranch | None = None
    """Branch of it; null: the default branch"""
    provider: Provider | None = None
    """Where the repository is; null: where the user has a token for and it is found"""
    environment_id: Id | None = None
    """Prepared environment that new conversations begin with; null: that of their repository"""
    test_command: Command | None = None
    """What a shell runs in the workspace of each attempt whose agent has finished; null: nothing"""
    budget: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """US dollars that all attempts may cost together; null: as the settings say for each"""

    def with_plain_ids(self) -> "AttemptOrder":
        """Return it with ids of 32 hex digits."""
        ids = {"conversation_id": self.conversation_id, "environment_id": self.environment_id}
        plain = {name: one and one.replace("-", "").lower() for name, one in ids.items()}
        return msgspec.structs.replace(self, **plain)

    @property
    def name(self) -> str:
        """What the conversation that is chosen is called."""
        return self.title or " ".join(self.message.split())[:_TITLE]

    @property
    def size(self) -> int:
        """How many attempts are wanted."""
        return self.count or len(self.models)


class AttemptSet(msgspec.Struct, frozen=True, kw_only=True):
    """One task as it is stored."""

    id: str
    user_id: str
    definition: AttemptOrder
    created_at: datetime
    stop: str = ""
    """Why none of it goes on; empty while they may."""
    is_over_budget: bool = False
    chosen: int | None = None
    is_deleted: bool = False
    """Whether only its conversations are still to be deleted."""
    completed_at: datetime | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt as it is stored."""

    set_id: str
    number: int
    conversation_id: str
    """The id that its conversation has, or will have."""
    model: str | None
    status: AttemptStatus = AttemptStatus.QUEUED
    detail: str = ""
    base: str = ""
    """The files that it began with, as a tree of git; empty where there is no repository."""
    outcome: AttemptStatus | None = None
    """What it will be once it is measured; None while its agent works."""
    files: int | None = None
    additions: int | None = None
    deletions: int | None = None
    exit_code: int | None = None
    output: str = ""
    """The end of what its tests wrote."""
    cost: float | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    is_settled: bool = False
    """Whether what its being chosen or not asks for is done."""

    @property
    def task_name(self) -> str:
        """What the background task is called that takes it on."""
        return f"attempt {self.conversation_id}"
