"""Attempts as a part of a server: types and handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Annotated, Final
from uuid import UUID

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import BadRequest, Conflict, NotFound, QuotaExceeded, view_of
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Routes,
    Success,
    Time,
    effect_of,
    path_id,
)

from .config import MAX, AttemptsConfig
from .model import Attempt, AttemptOrder, AttemptStatus
from .runner import Runner
from .service import Attempts, AttemptSetResult
from .table import MIGRATIONS


class AttemptChoice(msgspec.Struct, frozen=True, kw_only=True):
    """Which attempt goes on."""

    attempt: Annotated[int, Meta(ge=1, le=MAX)] | UUID
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


def to_info(shown: AttemptSetResult, *, with_output: bool = True) -> AttemptSetInfo:
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


ATTEMPTS: Final[web.AppKey[Attempts]] = web.AppKey("attempts")

_ONE: Final = "/{attempts_id}"

ROUTES: Final = Routes()


@ROUTES.add("GET", "")
async def get_all_attempts(request: web.Request) -> AttemptSetList:
    """List your tasks with several attempts.

    One sees only tasks of one's own, the newest first.
    """
    found = await request.app[ATTEMPTS].list_of(request[PRINCIPAL].user_id)
    return AttemptSetList(items=[to_info(one, with_output=False) for one in found])


@ROUTES.add(
    "POST",
    "",
    effect=effect_of(AttemptSetResult, to_info, status=HTTPStatus.CREATED),
    errors=(BadRequest, Conflict, NotFound, QuotaExceeded),
    example={"message": "Make the tests pass.", "count": 2, "test_command": "true"},
)
async def post_attempts(request: web.Request, body: AttemptOrder) -> AttemptSetResult:
    """Give one task to several agents at once.

    The answer comes at once; the attempts begin in the background. Each is a conversation in a sandbox
    of its own, and counts as a start. Where as many sandboxes run as may, they wait for their turn.
    """
    return await request.app[ATTEMPTS].create(request[PRINCIPAL].user_id, body)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_attempts(request: web.Request) -> AttemptSetInfo:
    """Show what the attempts of a task have come to.

    With what the tests of each have written last.
    """
    return to_info(await request.app[ATTEMPTS].get(*_named(request)))


@ROUTES.add(
    "POST",
    f"{_ONE}/choose",
    effect=effect_of(AttemptSetResult, to_info),
    errors=(Conflict, NotFound),
    example={"attempt": 1},
)
async def post_choose(request: web.Request, body: AttemptChoice) -> AttemptSetResult:
    """Go on with one attempt, and reclaim the others.

    The conversation of the attempt is one as any other from now on. Those of the others are deleted with
    their sandboxes, or only stopped with `keep_others`. Once one is chosen, no other one can be.
    """
    wanted = body.attempt.hex if isinstance(body.attempt, UUID) else body.attempt
    return await request.app[ATTEMPTS].choose(
        *_named(request), wanted, keep_others=body.keep_others
    )


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_attempts(request: web.Request) -> Success:
    """Delete a task and its attempts, but for the chosen one.

    What goes on is cancelled. The conversations of all attempts but the chosen one are deleted, with their
    sandboxes.
    """
    await request.app[ATTEMPTS].delete(*_named(request))
    return SUCCESS


def _named(request: web.Request) -> tuple[str, str]:
    return request[PRINCIPAL].user_id, path_id(request, "attempts_id")


class AttemptsExtension(Extension[AttemptsConfig]):
    """Takes attempts on while the server runs."""

    Config = AttemptsConfig
    prefix = "/api/v1/attempts"
    operations = ROUTES
    migrations = MIGRATIONS

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Take attempts on until the server stops."""
        runner = Runner(server, self.config)
        server.app[ATTEMPTS] = Attempts(server, self.config, runner.wake)
        server.event_bus.watch_all(runner.on_notice)
        server.supervisor.loop("attempts", runner.run_due, every_seconds=0)
        if self.config.delete_after_seconds:
            server.supervisor.loop("old attempts", runner.delete_old, every_seconds=600)
        yield
