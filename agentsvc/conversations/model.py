"""The structs of conversations and start tasks. Pure."""

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
    "The sandbox of this conversation does not exist any more; fork the conversation to continue"
    " in a new one with its history"
)
DEFAULT_MAX_ITERATIONS: Final = 500
DEFAULT_CONDENSER_SIZE: Final = 240

_RUNNING: Final = ExecutionStatus.RUNNING


class TitleSource(StrEnum):
    """The source of a conversation's title; a title from a user is never overwritten."""

    DEFAULT = "default"
    AGENT = "agent"
    USER = "user"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A status of a start task, and its duration."""

    status: StartStatus
    started_at: datetime
    duration_ms: int | None = None
    note: str | None = None
    """Problems in this stage that did not fail the start."""
    parts: dict[str, int] = {}
    """Measured parts of the stage, in milliseconds by name."""


class Generation(StrEnum):
    """The generation of the API through which a conversation was started."""

    V0 = "v0"
    V1 = "v1"


class StartTask(msgspec.Struct, frozen=True, kw_only=True):
    """The stored task that starts one conversation; it is resumed after a restart."""

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
    """The number of messages that wait for the end of the start."""
    queue_position: int | None = None
    """Its position, counted from 1, in the queue for capacity or for a turn."""


class TokenUsage(AgentTokenUsage, frozen=True, kw_only=True):
    """Tokens that a conversation has used so far."""

    model: str = ""
    """Model that was called; empty if unknown"""
    response_id: str = ""
    """The provider's id of the last response; empty if unknown"""


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of a conversation so far, in US dollars and tokens."""

    model_name: str = "default"
    """Model that was called"""
    accumulated_cost: float = 0.0
    """US dollars so far"""
    max_budget_per_task: float | None = None
    """US dollars at which a run is interrupted; null: no limit"""
    accumulated_token_usage: TokenUsage | None = None
    """Tokens so far; null before the first call"""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Further state of a conversation, mostly derived from its events.

    Events arrive out of order: a status and costs replace only those of an earlier timestamp,
    `status_at` and `stats_at`. Up to `synced_to` no event is missing. `budget_stop_cost` is the
    cost at which the run was last stopped for its budget; while `is_stop_due`, the agent server is
    still to be interrupted. `event_bytes` is the size of all events that the sandbox has reported.
    An `is_adopted` conversation was not started by this server. `run_asked_at` is when the agent
    was last told to run. `labels` are the user's.
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
    """A conversation between a user and an agent."""

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
    """The number of messages in its queue."""
    has_run_queued: bool = False
    """Whether a queued message or command makes the agent run."""

    def with_facts(self, **changes: Any) -> "Conversation":
        """Return the conversation with some of its facts changed."""
        return msgspec.structs.replace(self, facts=msgspec.structs.replace(self.facts, **changes))


class ConversationView(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A conversation with its sandbox; views are equal if they share both records."""

    conversation: Conversation
    sandbox: Sandbox | None
    is_silent: bool = False
    """Whether the agent server has not answered for too long."""

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
        """The status of the sandbox; STARTING if it is still to be created."""
        if self.sandbox is not None:
            return self.sandbox.status
        conversation = self.conversation
        if not conversation.is_ready and not conversation.start_failed:
            return SandboxStatus.STARTING
        return SandboxStatus.MISSING

    @property
    def execution_status(self) -> ExecutionStatus | None:
        """The status of the agent; None if the sandbox does not run or the agent server is silent.

        RUNNING also while a message that makes the agent run is queued or was just delivered:
        clients would take the previous status for the end of the run.
        """
        if self.sandbox_status is not SandboxStatus.RUNNING or self.is_silent:
            return None
        status, known = self.conversation.execution_status, self.conversation.facts
        is_asking = status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        # IDLE after a request to run means not begun yet; a sync ends this state.
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
    """A filter for conversations; all given conditions must hold."""

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
    """Changes of a conversation; UNSET keeps a value, None clears it."""

    title: str | UnsetType | None = UNSET
    is_public: bool | UnsetType | None = UNSET
    repository: str | UnsetType | None = UNSET
    branch: str | UnsetType | None = UNSET
    provider: Provider | UnsetType | None = UNSET
    labels: Sequence[str] | UnsetType | None = UNSET


def default_title(conversation_id: str) -> str:
    """Return the title of a conversation before the agent or the user sets one."""
    return f"Conversation {conversation_id[:5]}"
