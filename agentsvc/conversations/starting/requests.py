"""The request that creates a conversation at an agent server: model, secrets, tools, replay."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import AgentRefused, Conflict, NotFound, Secret, StartRefused
from agentsvc.conversations.replay_script import MODEL, recording_of
from agentsvc.conversations.secret_lookup import LookupTokens, make_lookups
from agentsvc.conversations.starting.agent_request import AgentInputs, chosen_model, make_agent_body
from agentsvc.conversations.starting.parts import StartParts
from agentsvc.conversations.starting.progress import Progress
from agentsvc.conversations.starting.prompts import first_message
from agentsvc.conversations.starting.states import StartWithSandbox, StartWithWorkspace
from agentsvc.conversations.starting.tool_servers import Servers
from agentsvc.domain import Llm, RecordedStep, llm_to_agent, secrets_of

_KEY_EXPOSED: Final = (
    "Anyone may start this conversation, and the key of its model would be in the sandbox: use a"
    " model that this server can proxy, such as one with an OpenAI-compatible API"
)


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the request, and what is needed to judge its response."""

    body: dict[str, Any]
    inputs: AgentInputs
    model: Llm
    """The configured model; the body may have a token for the model proxy instead of its key."""
    hidden: Sequence[Secret]
    """Secrets to remove from error messages."""
    steps: Sequence[RecordedStep]
    """The recorded steps to replay; empty unless the conversation is a replay."""

    @property
    def is_of_other(self) -> bool:
        """Whether it starts an agent of another vendor (ACP), which calls its model itself."""
        return "agent" not in self.body

    @property
    def tool_servers(self) -> Servers:
        """The tool servers that the agent server itself starts; empty for another agent."""
        return {} if self.is_of_other else self.body["agent"]["mcp_config"]

    @property
    def uses_model_proxy(self) -> bool:
        """Whether the agent calls its model through this server's model proxy."""
        return self.inputs.model is not None


class AgentRequests:
    """Builds the requests that create conversations at agent servers."""

    def __init__(self, parts: StartParts) -> None:
        self._parts = parts
        self._lookup_tokens = LookupTokens(parts.vault)
        self._progress = Progress(parts)

    async def make(self, prepared: StartWithWorkspace) -> AgentRequest:
        """Return the request for a start; also save the model for titles in the sandbox.

        Raises StartRefused if the order needs the model proxy and the model cannot use it.
        """
        hosted = prepared.hosted
        start, settings, sandbox = hosted.checked.start, hosted.checked.settings, hosted.sandbox
        withholds = sandbox.spec.withholds_secrets
        if withholds:
            options = settings.agent_options
            critic = msgspec.structs.replace(options.verification, critic_enabled=False)
            settings = msgspec.structs.replace(
                settings,
                mcp_config=None,
                search_api_key=None,
                agent_options=msgspec.structs.replace(options, verification=critic),
            )
        order, conversation_id = start.task.request, start.conversation.id
        steps = recording_of(order)
        title_profile = await self._share_title_profile(hosted)
        model = chosen_model(order, settings)
        lent = await self._parts.model_tokens.lend(sandbox, conversation_id, model)
        if order.needs_lent_model and lent is model and secrets_of(model):
            raise StartRefused(_KEY_EXPOSED)
        server = self._parts.sandboxes.inside_url(sandbox)
        replay_url = f"{server}/api/v1/webhooks/replays/{conversation_id}"
        recording = Llm(model=MODEL, api_key=sandbox.session_key, base_url=replay_url)
        inputs = AgentInputs(
            conversation_id=conversation_id,
            order=order,
            settings=settings,
            working_dir=prepared.workspace.project_dir,
            first_message=steps[0].message if steps else first_message(order),
            lookups={}
            if withholds
            else await make_lookups(sandbox, self._parts.secrets, self._lookup_tokens, server),
            usable_tools=await hosted.agent.usable_tools(),
            has_public_skills=self._parts.config.public_skills,
            hook_config=prepared.hook_config,
            model=None if lent is model else lent,
            title_profile=title_profile,
            recording=recording if steps else None,
        )
        keys = (settings.llm_api_key, lent.api_key, *order.secrets.values())
        return AgentRequest(
            body=make_agent_body(inputs),
            inputs=inputs,
            model=model,
            hidden=[key for key in keys if key],
            steps=steps,
        )

    async def _share_title_profile(self, hosted: StartWithSandbox) -> str | None:
        """Save the model for titles at the agent server; note a failure and continue."""
        start, settings = hosted.checked.start, hosted.checked.settings
        name = settings.title_llm_profile
        if name is None or start.task.request.title is not None:
            return None
        saved = settings.llm_profiles.get(name)
        if saved is None:
            await self._progress.note(start, f"title_llm_profile: there is no profile `{name}`")
            return None
        saved = msgspec.structs.replace(saved, api_key=saved.api_key or settings.llm_api_key)
        lent = await self._parts.model_tokens.lend(hosted.sandbox, start.conversation.id, saved)
        llm = llm_to_agent(lent, usage_id="title", stream=False)
        try:
            await hosted.agent.save_profile(name, llm, hide=[*secrets_of(saved), *secrets_of(lent)])
        except (AgentRefused, Conflict, NotFound) as exc:
            await self._progress.note(start, f"title_llm_profile: {exc.message}")
            return None
        return name
