"""The server extension of attempts: types and request handlers."""

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
    """The attempt to continue with."""

    attempt: Annotated[int, Meta(ge=1, le=MAX)] | UUID
    """Number of the attempt, or id of its conversation"""
    keep_others: bool = False
    """Whether the others are only stopped, and their conversations kept"""


class AttemptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt, and its result."""

    number: int
    """Number of the attempt, from 1"""
    conversation_id: str
    """Id of its conversation, 32 hex digits; it may not exist yet"""
    model: str | None
    """Its model; null: the model of the settings"""
    status: AttemptStatus
    """Status of the attempt"""
    detail: str | None
    """Why it failed, was stopped or waits; null: no reason"""
    files: int | None
    """Number of files changed since its start; null: unknown, or no git repository"""
    additions: int | None
    """Number of added lines; null: unknown"""
    deletions: int | None
    """Number of deleted lines; null: unknown"""
    test_exit_code: int | None
    """Exit code of the tests, 0 if they passed; null: they did not run, or not to their end"""
    test_output: str | None
    """The end of the tests' output, at most 1,900 bytes; null in lists, and if they did not run"""
    cost: float | None
    """Cost in US dollars until its end; null: unknown"""
    started_at: Time | None
    """When its agent got the task, in UTC; null: not yet"""
    ended_at: Time | None
    """When its agent ended, in UTC; null: not yet"""
    duration_seconds: float | None
    """Seconds from `started_at` to `ended_at`; null: it has not ended"""


class AttemptSetInfo(AttemptOrder, frozen=True, kw_only=True):
    """A task, and all of its attempts."""

    id: str
    """Id of the task, 32 hex digits"""
    name: str
    """Title of the chosen conversation"""
    cost: float
    """Cost of all attempts in US dollars, as far as known"""
    is_over_budget: bool
    """Whether the attempts were stopped because the budget is used up"""
    chosen: int | None
    """Number of the chosen attempt; null: none"""
    created_at: Time
    completed_at: Time | None
    """When the last attempt ended, in UTC; null: not yet"""
    attempts: list[AttemptInfo]
    """The attempts, ordered by number"""


class AttemptSetList(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks of a user."""

    items: list[AttemptSetInfo]
    """All of them, the newest first"""


def to_info(shown: AttemptSetResult, *, with_output: bool = True) -> AttemptSetInfo:
    """Return the API's view of a task."""
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

    Only your own tasks are listed, the newest first.
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

    The response is immediate; the attempts start in the background. Each is a conversation in its own
    sandbox, and counts as a start. If the limit of running sandboxes is reached, they wait for their turn.
    """
    return await request.app[ATTEMPTS].create(request[PRINCIPAL].user_id, body)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_attempts(request: web.Request) -> AttemptSetInfo:
    """Show the results of a task's attempts.

    The response includes the last output of each attempt's tests.
    """
    return to_info(await request.app[ATTEMPTS].get(*_owner_and_id(request)))


@ROUTES.add(
    "POST",
    f"{_ONE}/choose",
    effect=effect_of(AttemptSetResult, to_info),
    errors=(Conflict, NotFound),
    example={"attempt": 1},
)
async def post_choose(request: web.Request, body: AttemptChoice) -> AttemptSetResult:
    """Continue with one attempt, and delete the others.

    The conversation of the attempt continues like any other. Those of the others are deleted with
    their sandboxes, or only stopped with `keep_others`. The choice is final.
    """
    wanted = body.attempt.hex if isinstance(body.attempt, UUID) else body.attempt
    return await request.app[ATTEMPTS].choose(
        *_owner_and_id(request), wanted, keep_others=body.keep_others
    )


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_attempts(request: web.Request) -> Success:
    """Delete a task and its attempts except the chosen one.

    Running attempts are cancelled. The conversations of all attempts except the chosen one are deleted, with
    their sandboxes.
    """
    await request.app[ATTEMPTS].delete(*_owner_and_id(request))
    return SUCCESS


def _owner_and_id(request: web.Request) -> tuple[str, str]:
    return request[PRINCIPAL].user_id, path_id(request, "attempts_id")


class AttemptsExtension(Extension[AttemptsConfig]):
    """Runs attempts while the server runs."""

    Config = AttemptsConfig
    prefix = "/api/v1/attempts"
    operations = ROUTES
    migrations = MIGRATIONS

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Run attempts until the server stops."""
        runner = Runner(server, self.config)
        server.app[ATTEMPTS] = Attempts(server, self.config, runner.wake)
        server.event_bus.watch_all(runner.on_notice)
        server.supervisor.loop("attempts", runner.run_due, every_seconds=0)
        if self.config.delete_after_seconds:
            server.supervisor.loop("old attempts", runner.delete_old, every_seconds=600)
        yield
