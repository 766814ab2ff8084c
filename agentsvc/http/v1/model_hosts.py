"""Handlers of the allowed model hosts with private addresses."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import InvalidRequest
from agentsvc.http.keys import MODEL_HOSTS
from agentsvc.http.routes import Routes, Scope
from agentsvc.plugin.egress import BadHost, Mode, parse_policy


class ModelHost(msgspec.Struct, frozen=True, kw_only=True):
    """A model host to allow."""

    host: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    """Host with or without a port, in the format of `sandboxes.model_hosts` of the configuration"""


class ModelHostList(msgspec.Struct, frozen=True, kw_only=True):
    """The hosts that are not public and are allowed as model hosts for all users."""

    configured: list[str]
    """Hosts from `sandboxes.model_hosts` of the configuration"""
    added: list[str]
    """Hosts added by administrators"""


ROUTES: Final = Routes("/api/v1/model-hosts")


@ROUTES.add("GET", "", scope=Scope.ADMIN_READ)
async def get_model_hosts(request: web.Request) -> ModelHostList:
    """List the allowed model hosts that are not public.

    The server and new sandboxes can connect to these hosts.
    """
    hosts = request.app[MODEL_HOSTS]
    return ModelHostList(configured=list(hosts.configured), added=list(hosts.added))


@ROUTES.add("POST", "", scope=Scope.ADMIN, example={"host": "192.168.1.20:11434"})
async def post_model_host(request: web.Request, body: ModelHost) -> ModelHostList:
    """Allow a model host that is not public.

    For all users, from now on; sandboxes that already exist still cannot connect to it.
    """
    try:
        parse_policy(Mode.ALLOWLIST, [body.host])
    except BadHost as exc:
        raise InvalidRequest(str(exc), loc=("body", "host")) from exc
    await request.app[MODEL_HOSTS].add(body.host)
    return await get_model_hosts(request)


@ROUTES.add("DELETE", "/{model_host}", scope=Scope.ADMIN)
async def delete_model_host(request: web.Request, model_host: str) -> ModelHostList:
    """Remove an allowed model host.

    Hosts from the configuration cannot be removed here.
    """
    await request.app[MODEL_HOSTS].remove(model_host)
    return await get_model_hosts(request)
