"""Handlers of prepared environments."""

from http import HTTPStatus
from typing import Final

from aiohttp import web

from agentsvc.base import Conflict, NotAllowed, NotFound, QuotaExceeded
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Effect,
    Example,
    Routes,
    Scope,
    Success,
    json_response,
    path_id,
    read_json,
)

from .model import Definition, Environment
from .service import EnvironmentService
from .types import (
    EnvironmentDetails,
    EnvironmentInfo,
    EnvironmentList,
    EnvironmentUpdate,
    to_details,
    to_info,
)

PREFIX: Final = "/api/v1/environments"
ENVIRONMENTS: Final[web.AppKey[EnvironmentService]] = web.AppKey("environments")

_ONE: Final = "/{environment_id}"

ROUTES: Final = Routes()


def _answer_new(_request: web.Request, made: Environment) -> web.Response:
    return json_response(to_info(made), status=HTTPStatus.CREATED)


def _answer(_request: web.Request, one: Environment) -> web.Response:
    return json_response(to_info(one))


@ROUTES.add("GET", "", scope=Scope.READ, answer=EnvironmentList)
async def get_environments(request: web.Request) -> web.Response:
    """List your prepared environments.

    One sees only environments of one's own, the newest first.
    """
    found = await request.app[ENVIRONMENTS].list_of(request[PRINCIPAL].user_id)
    return json_response(EnvironmentList(items=[to_info(one) for one in found]))


@ROUTES.add(
    "POST",
    "",
    scope=Scope.RUN,
    body=Definition,
    answer=EnvironmentInfo,
    status=HTTPStatus.CREATED,
    effect=Effect(kind=Environment, answer=_answer_new),
    errors=(Conflict, NotAllowed, NotFound, QuotaExceeded),
    example=Example(body={"name": "Tools", "setup_script": "echo ready > tools.txt"}),
)
async def post_environment(request: web.Request) -> web.Response:
    """Prepare an environment that conversations begin with.

    The answer comes at once; ask for the environment until it is `ready` or `failed`. It is prepared
    in a sandbox of its own, which counts as any other.
    """
    definition, caller = await read_json(request, Definition), request[PRINCIPAL]
    made = await request.app[ENVIRONMENTS].create(
        caller.user_id, definition, is_admin=caller.is_admin
    )
    return _answer_new(request, made)


@ROUTES.add("GET", _ONE, scope=Scope.READ, answer=EnvironmentDetails, errors=(NotFound,))
async def get_environment(request: web.Request) -> web.Response:
    """Show an environment, and the log of its set-up.

    With what its set-up script wrote last.
    """
    return json_response(to_details(await request.app[ENVIRONMENTS].get_own(*_named(request))))


@ROUTES.add(
    "PATCH",
    _ONE,
    scope=Scope.RUN,
    body=EnvironmentUpdate,
    answer=EnvironmentInfo,
    effect=Effect(kind=Environment, answer=_answer),
    errors=(Conflict, NotAllowed, NotFound),
    example=Example(body={"maintenance_script": "git submodule update"}),
)
async def patch_environment(request: web.Request) -> web.Response:
    """Change an environment, and prepare it anew.

    Only what is sent is changed. It is prepared anew; until that is done, conversations begin with
    the files that were prepared before.
    """
    wanted = await read_json(request, EnvironmentUpdate)
    changed = await request.app[ENVIRONMENTS].update(
        *_named(request), wanted.changes(), is_admin=request[PRINCIPAL].is_admin
    )
    return _answer(request, changed)


@ROUTES.add("DELETE", _ONE, scope=Scope.RUN, answer=Success, errors=(NotFound,))
async def delete_environment(request: web.Request) -> web.Response:
    """Delete an environment and its files.

    Its files go with it; conversations that began with them keep theirs.
    """
    await request.app[ENVIRONMENTS].delete(*_named(request))
    return json_response(SUCCESS)


@ROUTES.add(
    "POST",
    f"{_ONE}/prepare",
    scope=Scope.RUN,
    answer=EnvironmentInfo,
    effect=Effect(kind=Environment, answer=_answer),
    errors=(NotFound,),
)
async def post_prepare(request: web.Request) -> web.Response:
    """Prepare an environment anew.

    A preparing that goes on already is ended, and begun anew.
    """
    return _answer(request, await request.app[ENVIRONMENTS].prepare(*_named(request)))


def _named(request: web.Request) -> tuple[str, str]:
    return request[PRINCIPAL].user_id, path_id(request, "environment_id")
