"""The wire struct of V0 events; unset fields are omitted of the JSON."""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class AgentState(StrEnum):
    """State of the agent in V0."""

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
    """Confirmation state of an action."""

    CONFIRMED = "confirmed"
    REJECTED = "rejected"
    AWAITING = "awaiting_confirmation"


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event: either an action, with `args`, or an observation, with `content` and `extras`."""

    id: int
    """Number of the event in its conversation, starting at 0, without gaps"""
    timestamp: str
    """Time of the event, ISO 8601 without an offset"""
    source: str
    """Source of the event: `user`, `agent` or `environment`"""
    message: str
    """Description of the event, for people"""
    action: str | UnsetType = UNSET
    """Kind of the action, such as `run` or `message`; omitted in an observation"""
    observation: str | UnsetType = UNSET
    """Kind of the observation, such as `run` or `agent_state_changed`; omitted in an action"""
    args: dict[str, Any] | UnsetType = UNSET
    """Arguments of the action, by its kind; omitted in an observation"""
    content: str | UnsetType = UNSET
    """Content of the observation, as text; omitted in an action"""
    extras: dict[str, Any] | UnsetType = UNSET
    """Further fields of the observation, by its kind; omitted in an action"""
    cause: int | UnsetType | None = UNSET
    """Number of the action that the observation answers; null or omitted: none"""
    success: bool | UnsetType | None = UNSET
    """Whether the command succeeded; null or omitted: the event is not a command's result"""
    timeout: float | UnsetType | None = UNSET
    """Timeout of the command in seconds; null or omitted: the agent server's timeout"""
    tool_call_metadata: dict[str, Any] | UnsetType | None = UNSET
    """The tool call of the event, with the model response; null or omitted: none"""
    llm_metrics: dict[str, Any] | UnsetType | None = UNSET
    """Costs in US dollars and tokens of the conversation so far; null or omitted: not reported"""
