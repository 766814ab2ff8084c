"""Handlers of V0 for the options of a front end: models, agents, security analyzers."""

from typing import Final

from aiohttp import web

from agentsvc.http.keys import CATALOGUE
from agentsvc.http.routes import Routes
from agentsvc.http.v0.settings import WebConfig
from agentsvc.settings import AGENTS, SECURITY_ANALYZERS

ROUTES: Final = Routes("/api/options")


@ROUTES.add("GET", "/config")
async def get_config(_request: web.Request) -> WebConfig:
    """Get the configuration of front ends.

    V0 front ends read it at page load.
    """
    return WebConfig()


@ROUTES.add("GET", "/models")
async def get_models(request: web.Request) -> list[str]:
    """List language models.

    As `provider/name`, the value of `llm_model`. The list is a suggestion: models that are not
    listed can be used, too.
    """
    models = (await request.app[CATALOGUE].get()).models
    return sorted({f"{model.provider}/{model.name}" for model in models})


@ROUTES.add("GET", "/agents")
async def get_agents(_request: web.Request) -> list[str]:
    """List the agents.

    There is only one.
    """
    return list(AGENTS)


@ROUTES.add("GET", "/security-analyzers")
async def get_security_analyzers(_request: web.Request) -> list[str]:
    """List the security analyzers, which rate the risk of actions.

    `security_analyzer` accepts these and `none`.
    """
    return [name for name in SECURITY_ANALYZERS if name != "none"]
