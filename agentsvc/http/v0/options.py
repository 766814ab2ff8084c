"""Handlers of the older generation for what a front end lets its user choose from."""

from typing import Final

from aiohttp import web

from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Routes
from agentsvc.http.v0.settings import WebConfig
from agentsvc.settings import AGENTS, SECURITY_ANALYZERS

ROUTES: Final = Routes("/api/options")


@ROUTES.add("GET", "/config")
async def get_config(_request: web.Request) -> WebConfig:
    """Tell a front end where it is.

    What front ends of the older generation ask for at page load.
    """
    return WebConfig()


@ROUTES.add("GET", "/models")
async def get_models(request: web.Request) -> list[str]:
    """List the language models.

    As `provider/name`, which `llm_model` takes. What this server knows; a model that is not here
    can be used as well.
    """
    models = (await request.app[CATALOGUE].get()).models
    return sorted({f"{model.provider}/{model.name}" for model in models})


@ROUTES.add("GET", "/agents")
async def get_agents(_request: web.Request) -> list[str]:
    """List the agents.

    There is one.
    """
    return list(AGENTS)


@ROUTES.add("GET", "/security-analyzers")
async def get_security_analyzers(_request: web.Request) -> list[str]:
    """List what can rate the risk of an action.

    `security_analyzer` takes one of them, and `none`.
    """
    return [name for name in SECURITY_ANALYZERS if name != "none"]
