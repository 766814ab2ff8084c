"""The wire form of an event of the older generation."""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class AgentState(StrEnum):
    """What the agent is doing, in the words of the older generation."""

    LOADING = "loading"
    RUNNING = "running"
    AWAITING_USER_INPUT = "awaiting_user_input"
    PAUSED = "paused"
    STOPPED = "stopped"
    FINISHED = "finished"
    ERROR = "error"
    AWAITING_USER_CONFIRMATION = "awaiting_user_confirmation"
    USER_CONFIRMED = "user_confirmed"
    USER_REJECTED = "user_rejected"


class Confirmation(StrEnum):
    """Whether an action may be carried out."""

    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    AWAITING = "awaiting_confirmation"


class AccumulatedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens a conversation has taken so far."""

    model: str = "default"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    context_window: int = 0
    per_turn_token: int = 0
    response_id: str = ""


class LlmMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation has cost so far; the three lists are always empty."""

    accumulated_cost: float = 0.0
    max_budget_per_task: float | None = None
    accumulated_token_usage: AccumulatedUsage = AccumulatedUsage()
    costs: tuple[float, ...] = ()
    response_latencies: tuple[float, ...] = ()
    token_usages: tuple[AccumulatedUsage, ...] = ()


class ToolCallMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call an event stems from."""

    function_name: str
    tool_call_id: str
    model_response: dict[str, Any]
    total_calls_in_response: int = 1


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An action or an observation; members that say nothing are left out.

    `id` counts the events of a conversation from 0 without a gap; `cause` is the id of the
    action an observation answers.
    """

    id: int
    timestamp: str
    source: str
    message: str
    cause: int | UnsetType = UNSET
    action: str | UnsetType = UNSET
    observation: str | UnsetType = UNSET
    tool_call_metadata: ToolCallMetadata | UnsetType = UNSET
    llm_metrics: LlmMetrics | UnsetType = UNSET
    args: dict[str, Any] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    extras: dict[str, Any] | UnsetType = UNSET
    success: bool | UnsetType = UNSET
    timeout: float | UnsetType = UNSET
