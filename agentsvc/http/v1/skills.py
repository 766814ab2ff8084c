"""Handlers of a user's skills, and of another model for a running conversation."""

from typing import Annotated, Final

import msgspec
from aiohttp import web

from agentsvc.base import AgentRefused, AgentUnavailable, BadRequest, copy_to
from agentsvc.http.keys import LIVE_SETTINGS, user_of
from agentsvc.http.routes import OF_AGENTS, Routes
from agentsvc.http.wire import SUCCESS, Page, PageQuery, Success, page_by_name


class SkillInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A skill without its content."""

    name: str
    """Name of the skill"""
    type: str
    """`repo` is always told to the agent, `knowledge` when one of its triggers is said,
    `agentskills` when the agent asks for it"""
    source: str
    """Where the skill comes from"""
    triggers: list[str] | None
    """Words in a message that call for the skill; null if none do"""


class SwitchProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The saved language model a conversation goes on with."""

    profile_name: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """Name of the saved model, as `/api/v1/settings/profiles` lists it"""


class SwitchAcpModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model another agent goes on with."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """Name that the agent has for the model"""


ROUTES: Final = Routes()


@ROUTES.add(
    "GET", "/api/v1/skills/search", errors=(AgentRefused, AgentUnavailable), example={"limit": 10}
)
async def search_skills(request: web.Request, query: PageQuery) -> Page[SkillInfo]:
    """List the skills that belong to no project, as a running sandbox sees them.

    Sorted by name. An agent server has to tell, so there are none while no sandbox of the user
    runs.
    """
    skills = await request.app[LIVE_SETTINGS].user_skills(user_of(request))
    shown = [
        copy_to(SkillInfo, one, source=one.source or "", triggers=one.triggers or None)
        for one in skills
    ]
    return page_by_name(shown, query.page_id, query.limit, lambda one: one.name)


@ROUTES.add(
    "POST",
    "/api/v1/app-conversations/{conversation_id}/switch_profile",
    errors=OF_AGENTS,
    example={"profile_name": "fast"},
)
async def post_switch_profile(
    request: web.Request, conversation_id: str, body: SwitchProfile
) -> Success:
    """Let a conversation go on with a saved language model.

    From its next step on. The settings stay as they are. Refused (409) while the sandbox does not
    run.
    """
    live, user_id = request.app[LIVE_SETTINGS], user_of(request)
    await live.switch_profile(user_id, conversation_id, body.profile_name)
    return SUCCESS


@ROUTES.add(
    "POST",
    "/api/v1/app-conversations/{conversation_id}/switch_acp_model",
    errors=(BadRequest, *OF_AGENTS),
    example={"model": "default"},
)
async def post_switch_acp_model(
    request: web.Request, conversation_id: str, body: SwitchAcpModel
) -> Success:
    """Let another agent go on with another of its models.

    For a conversation whose agent is of the kind `acp`, from its next turn on. Refused (409) while
    the sandbox does not run.
    """
    live, user_id = request.app[LIVE_SETTINGS], user_of(request)
    await live.switch_acp_model(user_id, conversation_id, body.model)
    return SUCCESS
