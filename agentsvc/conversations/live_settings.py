"""Switches of the model of running conversations, and the skills of a user's agents."""

from typing import Final

import msgspec

from agentsvc.agentserver import convert_answer
from agentsvc.base import BadRequest, NotFound, sha256
from agentsvc.conversations.model_tokens import ModelTokens
from agentsvc.conversations.service import Conversations
from agentsvc.domain import llm_to_agent, secrets_of
from agentsvc.sandboxes import Sandboxes
from agentsvc.settings import SettingsStore, get_profile

_HASH_LENGTH: Final = 8


class UserSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of all agents of a user, without its content."""

    name: str
    type: str
    source: str | None = None
    triggers: list[str] | None = None


class LiveSettings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Switches the models of running conversations, and lists the skills of a user's agents."""

    conversations: Conversations
    sandboxes: Sandboxes
    settings: SettingsStore
    has_public_skills: bool
    model_tokens: ModelTokens

    async def switch_profile(self, user_id: str, conversation_id: str, name: str) -> None:
        """Switch a conversation to a saved model profile.

        Raises NotFound for settings, profile or conversation; Conflict while the sandbox does not
        run; other errors of `Conversations.require_agent`; AgentUnavailable or AgentRefused.
        """
        settings = await self.settings.find(user_id)
        if settings is None:
            raise NotFound("Settings not found")
        llm = get_profile(settings, name)
        llm = msgspec.structs.replace(llm, api_key=llm.api_key or settings.llm_api_key)
        hidden = secrets_of(llm)
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        agent = self.conversations.require_agent(view)
        if view.sandbox is not None:
            hidden += secrets_of(
                llm := await self.model_tokens.lend(view.sandbox, conversation_id, llm)
            )
        body = llm_to_agent(llm, usage_id="", stream=True)
        # The agent server keeps one model for each usage id, so a changed model needs a new id.
        digest = sha256(msgspec.json.encode(body, order="sorted").decode())
        body["usage_id"] = f"profile:{name}:{digest[:_HASH_LENGTH]}"
        await agent.switch_llm(conversation_id, body, hide=hidden)
        self.conversations.ingestor.sync_soon(conversation_id)

    async def switch_acp_model(self, user_id: str, conversation_id: str, model: str) -> None:
        """Switch the ACP agent of a conversation to another of its models.

        Raises BadRequest if the conversation has no ACP agent, and otherwise as `switch_profile`.
        """
        view = await self.conversations.get(user_id, conversation_id, include_starting=True)
        agent = self.conversations.require_agent(view)
        if view.conversation.agent_kind != "acp":
            raise BadRequest("This conversation has no agent of the kind `acp`")
        await agent.switch_acp_model(conversation_id, model)
        self.conversations.ingestor.sync_soon(conversation_id)

    async def user_skills(self, user_id: str) -> list[UserSkill]:
        """Return the skills of a user that belong to no project, sorted by name.

        Read from the newest running sandbox; empty if none runs. Raises AgentUnavailable or
        AgentRefused.
        """
        running = await self.sandboxes.find_running(user_id)
        newest = running[-1] if running else None
        agent = self.sandboxes.agent_of(newest)
        if newest is None or agent is None:
            return []
        found = await agent.load_skills(
            newest.working_dir, load_public=self.has_public_skills, load_project=False
        )
        return sorted(convert_answer(found, list[UserSkill]), key=lambda skill: skill.name)
