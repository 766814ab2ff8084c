"""Handlers of a user's skills, and of changes to the model of a running conversation."""

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
    """When the agent gets the skill: `repo` always, `knowledge` if a message has one of its
    triggers, `agentskills` when the agent loads it"""
    source: str
    """Source of the skill"""
    triggers: list[str] | None
    """Words in a message that trigger the skill; null if it has no triggers"""


class SwitchProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The LLM profile to switch a conversation to."""

    profile_name: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """Name of the LLM profile, as listed by `/api/v1/settings/profiles`"""


class SwitchAcpModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model to switch an ACP agent to."""

    model: Annotated[str, msgspec.Meta(min_length=1, max_length=1000)]
    """The agent's name of the model"""


ROUTES: Final = Routes()


@ROUTES.add(
    "GET", "/api/v1/skills/search", errors=(AgentRefused, AgentUnavailable), example={"limit": 10}
)
async def search_skills(request: web.Request, query: PageQuery) -> Page[SkillInfo]:
    """List your skills that belong to no project, as seen in a running sandbox.

    Sorted by name. They are read from an agent server, so the list is empty unless a sandbox of the
    user is running.
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
    """Switch a conversation to an LLM profile.

    From its next step on. The settings do not change. Refused (409) unless the sandbox is running.
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
    """Switch an ACP agent to another of its models.

    For a conversation with the `agent_kind` `acp`, from its next turn on. Refused (409) unless the
    sandbox is running.
    """
    live, user_id = request.app[LIVE_SETTINGS], user_of(request)
    await live.switch_acp_model(user_id, conversation_id, body.model)
    return SUCCESS
