"""Records of conversations and start tasks. Pure."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.agentserver import AgentTokenUsage
from agentsvc.base import Secret
from agentsvc.domain import (
    ConversationSort,
    ExecutionStatus,
    Provider,
    StartOrder,
    StartStatus,
    Trigger,
)
from agentsvc.sandboxes import Sandbox, SandboxStatus

SANDBOX_GONE: Final = (
    "The sandbox of this conversation does not exist any more; a fork of the conversation goes on"
    " with its history in a new one"
)
DEFAULT_MAX_ITERATIONS: Final = 500
DEFAULT_CONDENSER_SIZE: Final = 240

_RUNNING: Final = ExecutionStatus.RUNNING


class TitleSource(StrEnum):
    """Who gave a conversation its title; a user's is never overwritten."""

    DEFAULT = "default"
    AGENT = "agent"
    USER = "user"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One status that a start went through, and how long it stayed there."""

    status: StartStatus
    started_at: datetime
    duration_ms: int | None = None
    note: str | None = None
    """What went wrong in it without stopping the start."""
    parts: dict[str, int] = {}
    """How many milliseconds of it went into what, as far as that is measured."""


class Generation(StrEnum):
    """The generation of the API through which something was started."""

    V0 = "v0"
    V1 = "v1"


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    """The record of getting one conversation started; it survives a restart."""

    id: str
    user_id: str
    conversation_id: str
    status: StartStatus
    detail: str | None = None
    sandbox_id: str | None = None
    agent_server_url: str | None = None
    request: StartOrder
    generation: Generation
    stages: tuple[Stage, ...]
    created_at: datetime
    updated_at: datetime
    queued_messages: int = 0
    """How many messages wait for its end."""
    queue_position: int | None = None
    """Its place among those that wait for room or for their turn, counted from 1."""


class TokenUsage(AgentTokenUsage, frozen=True, kw_only=True):
    """The tokens a conversation has used so far."""

    model: str = ""
    """Model that was asked; empty if not known"""
    response_id: str = ""
    """Id the provider gave its last answer; empty if not known"""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """What a conversation has cost so far, in US dollars and tokens."""

    model_name: str = "default"
    """Model that was asked"""
    accumulated_cost: float = 0.0
    """US dollars so far"""
    max_budget_per_task: float | None = None
    """US dollars after which a run ends; null: no limit"""
    accumulated_token_usage: TokenUsage | None = None
    """Tokens so far; null before the first call"""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept from a conversation's events, and how old each piece is.

    Events arrive out of order: a piece is replaced only by one with a later timestamp. Up to
    `synced_to` nothing is missing. `budget_stop_cost` is the cost at which the run was last
    stopped for its budget; while `is_stop_due` the agent server has still to be told. `event_bytes`
    is the size of all events that its sandbox has reported. One that `is_adopted` was not started
    by this server. At `run_asked_at` the agent was last told to go on. `labels` are the user's.
    """

    status_at: str = ""
    run_asked_at: str = ""
    stats_at: str = ""
    synced_to: str = ""
    budget_stop_cost: float | None = None
    is_stop_due: bool = False
    event_bytes: int = 0
    is_adopted: bool = False
    labels: tuple[str, ...] = ()


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One agent conversation that a user asked for."""

    id: str
    user_id: str
    alias: str | None
    sandbox_id: str | None
    title: str | None
    title_source: TitleSource
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    trigger: Trigger | None
    pr_number: tuple[int, ...]
    llm_model: str | None
    agent_kind: str
    metrics: Metrics | None = None
    facts: Facts = Facts()
    parent_id: str | None
    is_public: bool | None
    tags: dict[str, str]
    working_dir: str = ""
    generation: Generation
    execution_status: ExecutionStatus | None = None
    max_budget: float | None
    is_ready: bool = False
    start_failed: bool = False
    start_detail: str | None = None
    sub_ids: tuple[str, ...] = ()
    created_at: datetime
    updated_at: datetime
    queued_messages: int = 0
    """How many messages wait until its agent can take them."""
    has_run_queued: bool = False
    """Whether one of them, or an order that waits like them, sets the agent to work."""

    def with_facts(self, **changes: Any) -> "Conversation":
        """Return the conversation with some of its facts changed."""
        return msgspec.structs.replace(self, facts=msgspec.structs.replace(self.facts, **changes))


class ConversationView(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A conversation together with the sandbox it lives in; two are equal if they are of the same records."""

    conversation: Conversation
    sandbox: Sandbox | None
    is_silent: bool = False
    """Whether the agent server has not answered for long."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConversationView)
            and self.conversation is other.conversation
            and self.sandbox is other.sandbox
            and self.is_silent is other.is_silent
        )

    def __hash__(self) -> int:
        return id(self.conversation) ^ id(self.sandbox)

    @property
    def sandbox_status(self) -> SandboxStatus:
        """The state of the sandbox; one that is still to be made counts as starting."""
        if self.sandbox is not None:
            return self.sandbox.status
        conversation = self.conversation
        if not conversation.is_ready and not conversation.start_failed:
            return SandboxStatus.STARTING
        return SandboxStatus.MISSING

    @property
    def execution_status(self) -> ExecutionStatus | None:
        """What the agent is doing, or None where nobody can know: nothing runs, or answers.

        One that has a message to go on with runs: who asks would take what was before for the end.
        """
        if self.sandbox_status is not SandboxStatus.RUNNING or self.is_silent:
            return None
        status, known = self.conversation.execution_status, self.conversation.facts
        is_asking = status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        # What rests before its run has begun is not done: when that is over, a sync says so.
        is_to_begin = bool(known.run_asked_at) and status is ExecutionStatus.IDLE
        is_asked = is_to_begin or known.run_asked_at > known.status_at
        is_due = self.conversation.has_run_queued or is_asked
        return _RUNNING if is_due and not is_asking else status

    @property
    def agent_url(self) -> str | None:
        """The base URL of the agent server, or None unless the sandbox runs."""
        return self.sandbox.agent_url if self.sandbox else None

    @property
    def session_api_key(self) -> Secret | None:
        """The key of the agent server, or None unless the sandbox runs."""
        return self.sandbox.session_key if self.sandbox and self.agent_url else None


class ConversationQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which conversations to list; all that is given must hold."""

    title_contains: str | None = None
    created_at_gte: datetime | None = None
    created_at_lt: datetime | None = None
    updated_at_gte: datetime | None = None
    updated_at_lt: datetime | None = None
    sandbox_id: str | None = None
    repository: str | None = None
    trigger: Trigger | None = None
    include_children: bool = False
    include_starting: bool = False
    sort: ConversationSort = ConversationSort.CREATED_AT_DESC


class ConversationPatch(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of a conversation; what is not sent stays, None clears."""

    title: str | UnsetType | None = UNSET
    is_public: bool | UnsetType | None = UNSET
    repository: str | UnsetType | None = UNSET
    branch: str | UnsetType | None = UNSET
    provider: Provider | UnsetType | None = UNSET
    labels: Sequence[str] | UnsetType | None = UNSET


def default_title(conversation_id: str) -> str:
    """Return the title a conversation has until it gets a better one."""
    return f"Conversation {conversation_id[:5]}"
