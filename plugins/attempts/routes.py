"""Handlers of attempts."""

from http import HTTPStatus
from typing import Final
from uuid import UUID

from aiohttp import web

from agentsvc.base import BadRequest, Conflict, NotFound, QuotaExceeded
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Effect,
    Routes,
    Success,
    json_response,
    path_id,
)

from .model import AttemptOrder
from .service import Attempts, Shown
from .types import AttemptChoice, AttemptSetInfo, AttemptSetList, to_info

PREFIX: Final = "/api/v1/attempts"
ATTEMPTS: Final[web.AppKey[Attempts]] = web.AppKey("attempts")

_ONE: Final = "/{attempts_id}"

ROUTES: Final = Routes()


def _answer_new(_request: web.Request, made: Shown) -> web.Response:
    return json_response(to_info(made), status=HTTPStatus.CREATED)


def _answer(_request: web.Request, shown: Shown) -> web.Response:
    return json_response(to_info(shown))


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
    AttemptSetInfo,
    status=HTTPStatus.CREATED,
    effect=Effect(kind=Shown, answer=_answer_new),
    errors=(BadRequest, Conflict, NotFound, QuotaExceeded),
    example={"message": "Make the tests pass.", "count": 2, "test_command": "true"},
)
async def post_attempts(request: web.Request, body: AttemptOrder) -> web.Response:
    """Give one task to several agents at once.

    The answer comes at once; the attempts begin in the background. Each is a conversation in a sandbox
    of its own, and counts as a start. Where as many sandboxes run as may, they wait for their turn.
    """
    made = await request.app[ATTEMPTS].create(request[PRINCIPAL].user_id, body)
    return _answer_new(request, made)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_attempts(request: web.Request) -> AttemptSetInfo:
    """Show what the attempts of a task have come to.

    With what the tests of each have written last.
    """
    return to_info(await request.app[ATTEMPTS].get(*_named(request)))


@ROUTES.add(
    "POST",
    f"{_ONE}/choose",
    AttemptSetInfo,
    effect=Effect(kind=Shown, answer=_answer),
    errors=(Conflict, NotFound),
    example={"attempt": 1},
)
async def post_choose(request: web.Request, body: AttemptChoice) -> web.Response:
    """Go on with one attempt, and reclaim the others.

    The conversation of the attempt is one as any other from now on. Those of the others are deleted with
    their sandboxes, or only stopped with `keep_others`. Once one is chosen, no other one can be.
    """
    wanted = body.attempt.hex if isinstance(body.attempt, UUID) else body.attempt
    chosen = await request.app[ATTEMPTS].choose(
        *_named(request), wanted, keep_others=body.keep_others
    )
    return _answer(request, chosen)


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
