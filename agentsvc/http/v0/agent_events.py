"""Structs of the agent server's events, with the fields that the translation to V0 reads.

Unknown fields are ignored. An event of a kind that is not listed here, or with invalid fields,
decodes to None.
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
    """A message in the format of a language model."""

    content: list[MessagePart] = []


class ModelToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call of the model; the arguments are a JSON string."""

    arguments: str = "{}"


class UsageMetrics(AgentMetrics, frozen=True, kw_only=True):
    """Costs so far, and budget, of one usage of a model."""

    max_budget_per_task: float | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Costs of a conversation so far, by usage id."""

    usage_to_metrics: dict[str, UsageMetrics] = {}


class ConfirmationPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Policy that determines which actions need a confirmation."""

    kind: str = "NeverConfirm"
    threshold: str = "HIGH"
    confirm_unknown: bool = True

    def asks_at(self, risk: str) -> bool:
        """Whether an action with this risk, as rated by the agent, needs a confirmation.

        A security analyzer may rate the risk differently later.
        """
        if self.kind != "ConfirmRisky":
            return self.kind == "AlwaysConfirm"
        if risk not in _RISKS or self.threshold not in _RISKS:
            return self.confirm_unknown
        return _RISKS.index(risk) >= _RISKS.index(self.threshold)


class FullState(msgspec.Struct, frozen=True, kw_only=True):
    """The full state of a conversation."""

    confirmation_policy: ConfirmationPolicy | None = None


class Classification(msgspec.Struct, frozen=True, kw_only=True):
    """Category of an error."""

    kind: str = "unknown"


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """An imported V0 event, and the id of the agent event with the same content (its twin)."""

    event: msgspec.Raw
    twin: str | None = None


class ImportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that are read from an imported V0 event; its id is a number."""

    id: int
    timestamp: str
    source: str = ""
    observation: str = ""
    extras: dict[str, Any] = {}


class Reported(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """Fields common to all events."""

    id: str
    timestamp: str
    source: str = "environment"


class SystemPromptEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The system prompt of the agent."""

    system_prompt: MessagePart
    tools: list[dict[str, Any]] = []


class MessageEvent(Reported, frozen=True, kw_only=True, tag=True):
    """A message of the user or the agent."""

    llm_message: ChatMessage


class ActionEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The agent calls a tool; `action` is null if the model's tool call could not be parsed."""

    thought: list[MessagePart] = []
    action: dict[str, Any] | None = None
    tool_name: str = ""
    tool_call_id: str = ""
    tool_call: ModelToolCall | None = None
    llm_response_id: str | None = None
    security_risk: str = "UNKNOWN"


class ObservationEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The result of a tool call."""

    observation: dict[str, Any]
    action_id: str
    tool_name: str = ""


class UserRejectObservation(Reported, frozen=True, kw_only=True, tag=True):
    """The user rejected a tool call."""

    action_id: str
    rejection_reason: str = ""


class AgentErrorEvent(Reported, frozen=True, kw_only=True, tag=True):
    """A tool call failed outside of the tool."""

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
    """A field of the conversation's state has changed."""

    key: str
    value: msgspec.Raw = msgspec.Raw(b"null")


class PauseEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The user asked the agent to pause after the present step."""


class InterruptEvent(Reported, frozen=True, kw_only=True, tag=True):
    """The user asked the agent to stop at once."""


class Condensation(Reported, frozen=True, kw_only=True, tag=True):
    """The agent drops a part of the history, or replaces it by a summary."""

    forgotten_event_ids: list[str] = []
    summary: str | None = None
    summary_offset: int | None = None


class CondensationRequest(Reported, frozen=True, kw_only=True, tag=True):
    """Request to condense the history."""


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
"""Every event except updates of the conversation's state."""
type AgentEvent = LoggedEvent | ConversationStateUpdateEvent

EVENT: msgspec.json.Decoder[AgentEvent] = msgspec.json.Decoder(AgentEvent)
"""Decodes the events that have an equivalent in V0."""
_RISKS = ("LOW", "MEDIUM", "HIGH")


def find_policy(event: ConversationStateUpdateEvent) -> ConfirmationPolicy | None:
    """Return the confirmation policy in a state update, or None if it has none."""
    if event.key == "confirmation_policy":
        return decode_or_none(event.value, ConfirmationPolicy)
    if event.key == "full_state":
        state = decode_or_none(event.value, FullState)
        return state.confirmation_policy if state else None
    return None


def text_of(parts: list[MessagePart]) -> str:
    """Return the joined texts of message parts."""
    return "".join(part.text or "" for part in parts)


def string_of(fields: dict[str, Any], name: str) -> str:
    """Return a string field, or an empty string if it is missing or of another type."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""
