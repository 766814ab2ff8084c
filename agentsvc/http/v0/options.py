"""Handlers of the older generation for what a front end lets its user choose from."""

from typing import Final

from aiohttp import web

from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Route, Scope
from agentsvc.http.v0.types_settings import WebConfig, from_models
from agentsvc.http.wire import json_response
from agentsvc.settings import AGENTS, SECURITY_ANALYZERS


async def get_config(_request: web.Request) -> web.Response:
    """Tell a front end where it is: GET /api/options/config.

    What front ends of the older generation ask for at page load.
    """
    return json_response(WebConfig())


async def get_models(request: web.Request) -> web.Response:
    """List the language models, as settings name them: GET /api/options/models.

    As `provider/name`, which `llm_model` takes. What this server knows; a model that is not here
    can be used as well.
    """
    return json_response(from_models((await request.app[CATALOGUE].get()).models))


async def get_agents(_request: web.Request) -> web.Response:
    """List the agents: GET /api/options/agents.

    There is one.
    """
    return json_response(AGENTS)


async def get_security_analyzers(_request: web.Request) -> web.Response:
    """List what can rate the risk of an action: GET /api/options/security-analyzers.

    `security_analyzer` takes one of them, and `none`.
    """
    return json_response([name for name in SECURITY_ANALYZERS if name != "none"])


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/options/config",
        handler=get_config,
        scope=Scope.READ,
        rank="P1",
        summary="Tell a front end where it is",
        answer=WebConfig,
    ),
    Route(
        method="GET",
        path="/api/options/models",
        handler=get_models,
        scope=Scope.READ,
        rank="P2",
        summary="List the language models",
        answer=list[str],
    ),
    Route(
        method="GET",
        path="/api/options/agents",
        handler=get_agents,
        scope=Scope.READ,
        rank="P2",
        summary="List the agents",
        answer=list[str],
    ),
    Route(
        method="GET",
        path="/api/options/security-analyzers",
        handler=get_security_analyzers,
        scope=Scope.READ,
        rank="P2",
        summary="List what can rate the risk of an action",
        answer=list[str],
    ),
)
