"""The events an agent server reports, as far as the older generation shows them.

Only what a translation needs is described; members nobody reads pass, and an event whose kind
is not listed here, or that does not fit its description, decodes to None.
"""

from typing import Any

import msgspec

from agentsvc.agentserver import AgentMetrics
from agentsvc.base import decode_or_none


class MessagePart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message: a text, or images."""

    text: str | None = None
    image_urls: list[str] | None = None


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the words of a language model."""

    content: list[MessagePart] = []


class ModelToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """What the model wrote to have a tool used; the arguments are JSON text."""

    arguments: str = "{}"


class UsageMetrics(AgentMetrics, frozen=True, kw_only=True):
    """What one use of a model has cost so far, and may cost."""

    max_budget_per_task: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation has cost so far, by use."""

    usage_to_metrics: dict[str, UsageMetrics] = {}


class ConfirmationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Before which actions the agent asks."""

    kind: str = "NeverConfirm"
    threshold: str = "HIGH"
    confirm_unknown: bool = True

    def asks_at(self, risk: str) -> bool:
        """Whether the agent asks before an action whose risk it judges so.

        What an analyzer of risks says later may differ.
        """
        if self.kind != "ConfirmRisky":
            return self.kind == "AlwaysConfirm"
        if risk not in _RISKS or self.threshold not in _RISKS:
            return self.confirm_unknown
        return _RISKS.index(risk) >= _RISKS.index(self.threshold)


class FullState(msgspec.Struct, frozen=True, kw_only=True):
    """All of a conversation's state at once."""

    confirmation_policy: ConfirmationPolicy | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """What sort of failure an error is."""

    kind: str = "unknown"


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the older generation as it was, and the event that says the same."""

    event: msgspec.Raw
    twin: str | None = None


class ImportedHead(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of the event itself, which has a number as its id."""

    id: int
    timestamp: str
    source: str = ""
    observation: str = ""
    extras: dict[str, Any] = {}


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """What every event has."""

    id: str
    timestamp: str
    source: str = "environment"


class SystemPromptEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The instructions the agent begins with."""

    system_prompt: MessagePart
    tools: list[dict[str, Any]] = []


class MessageEvent(Reported, frozen=True, kw_only=True, tag=True):
    """Somebody says something."""

    llm_message: ChatMessage


class ActionEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The agent uses a tool; `action` is null if what the model wrote made no sense."""

    thought: list[MessagePart] = []
    action: dict[str, Any] | None = None
    tool_name: str = ""
    tool_call_id: str = ""
    tool_call: ModelToolCall | None = None
    llm_response_id: str | None = None
    security_risk: str = "UNKNOWN"


class ObservationEvent(Reported, frozen=True, kw_only=True, tag=True):
    """What came of the use of a tool."""

    observation: dict[str, Any]
    action_id: str
    tool_name: str = ""


class UserRejectObservation(Reported, frozen=True, kw_only=True, tag=True):
    """The user does not allow the use of a tool."""

    action_id: str
    rejection_reason: str = ""


class AgentErrorEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The use of a tool failed outside of the tool."""

    error: str
    tool_call_id: str = ""


class ConversationErrorEvent(Reported, frozen=True, kw_only=True, tag=True):
    """A run failed."""

    code: str = ""
    detail: str = ""
    classification: Classification | None = None


class ServerErrorEvent(ConversationErrorEvent, frozen=True, kw_only=True, tag=True):
    """The agent server itself failed."""


class ConversationStateUpdateEvent(Reported, frozen=True, kw_only=True, tag=True):
    """A part of the conversation's state has a new value."""

    key: str
    value: msgspec.Raw = msgspec.Raw(b"null")


class PauseEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The user asked the agent to pause after its step."""


class InterruptEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The user asked the agent to stop at once."""


class Condensation(Reported, frozen=True, kw_only=True, tag=True):
    """The agent forgets a part of the history, perhaps for a summary of it."""

    forgotten_event_ids: list[str] = []
    summary: str | None = None
    summary_offset: int | None = None


class CondensationRequest(Reported, frozen=True, kw_only=True, tag=True):
    """Somebody asked the agent to shorten the history."""


type LoggedEvent = (
    SystemPromptEvent
    | MessageEvent
    | ActionEvent
    | ObservationEvent
    | UserRejectObservation
    | AgentErrorEvent
    | ConversationErrorEvent
    | ServerErrorEvent
    | PauseEvent
    | InterruptEvent
    | Condensation
    | CondensationRequest
)
"""Every event but those that tell a part of the conversation's state."""
type AgentEvent = LoggedEvent | ConversationStateUpdateEvent

EVENT: msgspec.json.Decoder[AgentEvent] = msgspec.json.Decoder(AgentEvent)
"""Decodes what the older generation has something to show for."""
_RISKS = ("LOW", "MEDIUM", "HIGH")


def find_policy(event: ConversationStateUpdateEvent) -> ConfirmationPolicy | None:
    """Return when the agent asks from now on, or None if the event does not say."""
    if event.key == "confirmation_policy":
        return decode_or_none(event.value, ConfirmationPolicy)
    if event.key == "full_state":
        state = decode_or_none(event.value, FullState)
        return state.confirmation_policy if state else None
    return None


def text_of(parts: list[MessagePart]) -> str:
    """Return the texts of some parts as one."""
    return "".join(part.text or "" for part in parts)


def string_of(fields: dict[str, Any], name: str) -> str:
    """Return a member that should be a text, or an empty text if it is none."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
