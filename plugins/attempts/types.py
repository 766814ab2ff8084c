"""What the routes of attempts read and answer."""

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from agentsvc.base import view_of
from agentsvc.extension.web import Time

from .model import Attempt, AttemptOrder, AttemptStatus
from .service import Shown
from .settings import MOST


class AttemptChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt goes on."""

    attempt: Annotated[int, Meta(ge=1, le=MOST)] | UUID
    """Its number, or the id of its conversation"""
    keep_others: bool = False
    """Whether the others are stopped only, and their conversations stay"""


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, and what came of it."""

    number: int
    """Its number, from 1"""
    conversation_id: str
    """Id that its conversation has, or will have, 32 hex digits"""
    model: str | None
    """Model it was given; null: that of the settings"""
    status: AttemptStatus
    """How far it is"""
    detail: str | None
    """Why it has failed, was stopped or waits; null: nothing to say"""
    files: int | None
    """Number of files that are others than when it began; null: not known, or no git repository"""
    additions: int | None
    """Lines that were added; null: not known"""
    deletions: int | None
    """Lines that were deleted; null: not known"""
    test_exit_code: int | None
    """Exit code of the tests, 0 if they have passed; null: they were not run, or not to their end"""
    test_output: str | None
    """The end of what the tests wrote, at most 1,900 bytes; null in lists, and where they were not run"""
    cost: float | None
    """US dollars it has cost until it was over; null: not known"""
    started_at: Time | None
    """When its agent was told the task, in UTC; null: not yet"""
    ended_at: Time | None
    """When its agent has ended, in UTC; null: not yet"""
    duration_seconds: float | None
    """Seconds between these; null: it has not ended"""


class AttemptSetInfo(AttemptOrder, frozen=True, kw_only=True):
    """A task, and all of its attempts."""

    id: str
    """Id of the task, 32 hex digits"""
    name: str
    """What the conversation that is chosen is called"""
    cost: float
    """US dollars that all attempts have cost, as far as that is known"""
    is_over_budget: bool
    """Whether they were stopped since the budget is used up"""
    chosen: int | None
    """Number of the attempt that was chosen; null: none"""
    created_at: Time
    completed_at: Time | None
    """When the last attempt was over, in UTC; null: not yet"""
    attempts: list[AttemptInfo]
    """Its attempts, in their order"""


class AttemptSetList(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks of a user, which are few."""

    items: list[AttemptSetInfo]
    """All of them, the newest first"""


def to_info(shown: Shown, *, with_output: bool = True) -> AttemptSetInfo:
    """Return a task as its owner sees it."""
    task, attempts = shown.task, shown.attempts
    return view_of(
        AttemptSetInfo,
        task,
        **msgspec.structs.asdict(task.definition),
        name=task.definition.name,
        cost=sum(one.cost or 0.0 for one in attempts),
        attempts=[_to_attempt(one, with_output=with_output) for one in attempts],
    )


def _to_attempt(one: Attempt, *, with_output: bool) -> AttemptInfo:
    took = one.ended_at - one.started_at if one.ended_at and one.started_at else None
    return view_of(
        AttemptInfo,
        one,
        detail=one.detail or None,
        test_exit_code=one.exit_code,
        test_output=(one.output or None) if with_output else None,
        duration_seconds=round(max(0.0, took.total_seconds()), 3) if took else None,
    )
