"""Handlers of the hosts of models that are not public."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import InvalidRequest
from agentsvc.http.keys import MODEL_HOSTS
from agentsvc.http.routes import Routes, Scope
from agentsvc.plugin.egress import BadHost, Mode, parse_policy


class ModelHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is to be allowed."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """Host, with a port or without, as `sandboxes.model_hosts` of the configuration has them"""


class ModelHostList(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that are not public and at which models of all users may be."""

    configured: list[str]
    """Those of `sandboxes.model_hosts` in the configuration"""
    added: list[str]
    """Those that administrators have added"""


ROUTES: Final = Routes("/api/v1/model-hosts")


@ROUTES.add("GET", "", scope=Scope.ADMIN_READ)
async def get_model_hosts(request: web.Request) -> ModelHostList:
    """List the hosts that are not public and at which models may be.

    The server and new sandboxes reach models at these hosts.
    """
    hosts = request.app[MODEL_HOSTS]
    return ModelHostList(configured=list(hosts.configured), added=list(hosts.added))


@ROUTES.add("POST", "", scope=Scope.ADMIN, example={"host": "192.168.1.20:11434"})
async def post_model_host(request: web.Request, body: ModelHost) -> ModelHostList:
    """Allow models at a host that is not public.

    For all users and at once; a sandbox that is there already does not reach it.
    """
    try:
        parse_policy(Mode.ALLOWLIST, [body.host])
    except BadHost as exc:
        raise InvalidRequest(str(exc), loc=("body", "host")) from exc
    await request.app[MODEL_HOSTS].add(body.host)
    return await get_model_hosts(request)


@ROUTES.add("DELETE", "/{model_host}", scope=Scope.ADMIN)
async def delete_model_host(request: web.Request, model_host: str) -> ModelHostList:
    """Allow a host of models no longer.

    Those of the configuration stay.
    """
    await request.app[MODEL_HOSTS].remove(model_host)
    return await get_model_hosts(request)
