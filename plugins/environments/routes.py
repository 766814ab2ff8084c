"""Prepared environments as a part of a server: types and handlers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import Conflict, NotAllowed, NotFound, QuotaExceeded, copy_to, view_of
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Routes,
    Success,
    Time,
    changes_of,
    effect_of,
    path_id,
    read_changes,
)

from .config import EnvironmentsConfig
from .model import Definition, Environment, Status
from .preparing import Preparer
from .service import EnvironmentService
from .table import MIGRATIONS

EnvironmentUpdate: Final = changes_of(
    Definition,
    "EnvironmentUpdate",
    "What to change of an environment, which is prepared anew; what is not sent stays.",
)


class EnvironmentInfo(Definition, frozen=True, kw_only=True):
    """An environment, and how far its preparing has come."""

    id: str
    """Id of the environment, 32 hex digits; `environment_id` of a start takes it"""
    status: Status
    """How far the preparing has come; `failed` keeps what was prepared before"""
    detail: str | None
    """What is being done, or why it could not be prepared; null: nothing to say"""
    is_prepared: bool
    """Whether there are prepared files, with which conversations begin"""
    size_bytes: int
    """Bytes of disk that the prepared files take; 0 for none"""
    prepared_at: Time | None
    """When they were prepared, in UTC; null: never"""
    created_at: Time
    updated_at: Time


class EnvironmentDetails(EnvironmentInfo, frozen=True, kw_only=True):
    """An environment with what its set-up script wrote last."""

    log: str
    """The end of what the set-up script wrote, at most 20,000 characters"""


class EnvironmentList(msgspec.Struct, frozen=True, kw_only=True):
    """The environments of a user, which are few."""

    items: list[EnvironmentInfo]
    """All of them, the newest first"""


def to_info(one: Environment) -> EnvironmentInfo:
    """Return an environment as its owner sees it in a list."""
    return view_of(
        EnvironmentInfo,
        one,
        **msgspec.structs.asdict(one.definition),
        detail=one.reason or None,
        is_prepared=bool(one.layer_id),
    )


_POLL_SECONDS: Final = 30.0
ENVIRONMENTS: Final[web.AppKey[EnvironmentService]] = web.AppKey("environments")

_ONE: Final = "/{environment_id}"

ROUTES: Final = Routes()


@ROUTES.add("GET", "")
async def get_environments(request: web.Request) -> EnvironmentList:
    """List your prepared environments.

    One sees only environments of one's own, the newest first.
    """
    found = await request.app[ENVIRONMENTS].list_of(request[PRINCIPAL].user_id)
    return EnvironmentList(items=[to_info(one) for one in found])


@ROUTES.add(
    "POST",
    "",
    effect=effect_of(Environment, to_info, status=HTTPStatus.CREATED),
    errors=(Conflict, NotAllowed, NotFound, QuotaExceeded),
    example={"name": "Tools", "setup_script": "echo ready > tools.txt"},
)
async def post_environment(request: web.Request, body: Definition) -> Environment:
    """Prepare an environment that conversations begin with.

    The answer comes at once; ask for the environment until it is `ready` or `failed`. It is prepared
    in a sandbox of its own, which counts as any other.
    """
    caller = request[PRINCIPAL]
    return await request.app[ENVIRONMENTS].create(caller.user_id, body, is_admin=caller.is_admin)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_environment(request: web.Request) -> EnvironmentDetails:
    """Show an environment, and the log of its set-up.

    With what its set-up script wrote last.
    """
    found = await request.app[ENVIRONMENTS].get_own(*_named(request))
    return copy_to(EnvironmentDetails, to_info(found), log=found.log)


@ROUTES.add(
    "PATCH",
    _ONE,
    body=EnvironmentUpdate,
    effect=effect_of(Environment, to_info),
    errors=(Conflict, NotAllowed, NotFound),
    example={"maintenance_script": "git submodule update"},
)
async def patch_environment(request: web.Request) -> Environment:
    """Change an environment, and prepare it anew.

    Only what is sent is changed. It is prepared anew; until that is done, conversations begin with
    the files that were prepared before.
    """
    changes = await read_changes(request, EnvironmentUpdate)
    return await request.app[ENVIRONMENTS].update(
        *_named(request), changes, is_admin=request[PRINCIPAL].is_admin
    )


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_environment(request: web.Request) -> Success:
    """Delete an environment and its files.

    Its files go with it; conversations that began with them keep theirs.
    """
    await request.app[ENVIRONMENTS].delete(*_named(request))
    return SUCCESS


@ROUTES.add(
    "POST",
    f"{_ONE}/prepare",
    effect=effect_of(Environment, to_info),
    errors=(NotFound,),
)
async def post_prepare(request: web.Request) -> Environment:
    """Prepare an environment anew.

    A preparing that goes on already is ended, and begun anew.
    """
    return await request.app[ENVIRONMENTS].prepare(*_named(request))


def _named(request: web.Request) -> tuple[str, str]:
    return request[PRINCIPAL].user_id, path_id(request, "environment_id")


class EnvironmentsExtension(Extension[EnvironmentsConfig]):
    """Prepares environments while the server runs."""

    Config = EnvironmentsConfig
    prefix = "/api/v1/environments"
    operations = ROUTES
    migrations = MIGRATIONS

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Prepare environments until the server stops."""
        preparer = Preparer(server, self.config)

        def wake() -> None:
            # What is removed may take long, and keeps nobody waiting.
            server.supervisor.spawn("begin environments", preparer.begin_waiting)
            server.supervisor.spawn("look at environments", preparer.prepare_due)

        service = EnvironmentService(server, self.config, wake)
        server.app[ENVIRONMENTS] = service
        server.conversations.starts.environments.source = service
        server.supervisor.loop("environments", preparer.prepare_due, every_seconds=_POLL_SECONDS)
        yield
