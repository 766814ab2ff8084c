"""The wire form of an event of the older generation; members that say nothing are left out."""

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


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event has; an action has `args` beside it, an observation `content` and `extras`."""

    id: int
    """Number of the event in its conversation, counted from 0 without a gap"""
    timestamp: str
    """When it happened, ISO 8601, without an offset"""
    source: str
    """Where it comes from: `user`, `agent` or `environment`"""
    message: str
    """What it is, in words"""
    action: str | UnsetType = UNSET
    """Kind of the action, such as `run` or `message`; left out in an observation"""
    observation: str | UnsetType = UNSET
    """Kind of the observation, such as `run` or `agent_state_changed`; left out in an action"""
    args: dict[str, Any] | UnsetType = UNSET
    """Arguments of the action, by its kind; left out in an observation"""
    content: str | UnsetType = UNSET
    """What was observed, as text; left out in an action"""
    extras: dict[str, Any] | UnsetType = UNSET
    """Further members of the observation, by its kind; left out in an action"""
    cause: int | UnsetType | None = UNSET
    """Number of the action an observation answers; null or left out: it answers none"""
    success: bool | UnsetType | None = UNSET
    """Whether a command has ended well; null or left out: it was no command"""
    timeout: float | UnsetType | None = UNSET
    """Seconds a command may take; null or left out: as long as the agent server lets it"""
    tool_call_metadata: dict[str, Any] | UnsetType | None = UNSET
    """The tool call it stems from, with what the model answered; null or left out: none"""
    llm_metrics: dict[str, Any] | UnsetType | None = UNSET
    """What the conversation has cost so far, in US dollars and tokens; null or left out: not told"""
