"""The server extension of prepared environments: types and request handlers."""

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
    "Changes to an environment, which is prepared again; omitted fields stay.",
)


class EnvironmentInfo(Definition, frozen=True, kw_only=True):
    """An environment, and the status of its preparation."""

    id: str
    """Id of the environment, 32 hex digits, for `environment_id` of a start"""
    status: Status
    """Status of the preparation; after `failed`, files prepared earlier stay in use"""
    detail: str | None
    """The current step, or why the preparation failed; null: none"""
    is_prepared: bool
    """Whether there are prepared files for new conversations"""
    size_bytes: int
    """Disk space of the prepared files in bytes; 0: no files"""
    prepared_at: Time | None
    """When they were prepared, in UTC; null: never"""
    created_at: Time
    updated_at: Time


class EnvironmentDetails(EnvironmentInfo, frozen=True, kw_only=True):
    """An environment with the last output of its set-up script."""

    log: str
    """The end of the set-up script's output, at most 20,000 characters"""


class EnvironmentList(msgspec.Struct, frozen=True, kw_only=True):
    """All environments of a user."""

    items: list[EnvironmentInfo]
    """All of them, the newest first"""


def to_info(one: Environment) -> EnvironmentInfo:
    """Return the API's view of an environment in a list."""
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

    Only your own environments are listed, the newest first.
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
    """Create an environment, and prepare it for new conversations.

    The response is immediate; poll the environment until it is `ready` or `failed`. It is prepared
    in a dedicated sandbox, which counts towards the limits.
    """
    caller = request[PRINCIPAL]
    return await request.app[ENVIRONMENTS].create(caller.user_id, body, is_admin=caller.is_admin)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_environment(request: web.Request) -> EnvironmentDetails:
    """Show an environment, and the log of its set-up.

    The response includes the last output of its set-up script.
    """
    found = await request.app[ENVIRONMENTS].get_own(*_owner_and_id(request))
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
    """Change an environment, and prepare it again.

    Omitted fields stay. Until the new preparation is done, conversations start with the files
    that were prepared before.
    """
    changes = await read_changes(request, EnvironmentUpdate)
    return await request.app[ENVIRONMENTS].update(
        *_owner_and_id(request), changes, is_admin=request[PRINCIPAL].is_admin
    )


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_environment(request: web.Request) -> Success:
    """Delete an environment and its files.

    Its files are deleted with it; conversations that started with them keep their copies.
    """
    await request.app[ENVIRONMENTS].delete(*_owner_and_id(request))
    return SUCCESS


@ROUTES.add(
    "POST",
    f"{_ONE}/prepare",
    effect=effect_of(Environment, to_info),
    errors=(NotFound,),
)
async def post_prepare(request: web.Request) -> Environment:
    """Prepare an environment again.

    A preparation in progress is cancelled and starts over.
    """
    return await request.app[ENVIRONMENTS].prepare(*_owner_and_id(request))


def _owner_and_id(request: web.Request) -> tuple[str, str]:
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
            # The removal of unused files may take long, and must not delay preparations.
            server.supervisor.spawn("start environments", preparer.begin_waiting)
            server.supervisor.spawn("check environments", preparer.prepare_due)

        service = EnvironmentService(server, self.config, wake)
        server.app[ENVIRONMENTS] = service
        server.conversations.starts.environments.source = service
        server.supervisor.loop("environments", preparer.prepare_due, every_seconds=_POLL_SECONDS)
        yield
