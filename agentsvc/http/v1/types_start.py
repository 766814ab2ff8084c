"""The start of a conversation on the V1 wire: the request, its echo, the task."""

from collections.abc import Mapping
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from agentsvc.conversations import StartTask
from agentsvc.conversations.model import Stage
from agentsvc.errors import InvalidRequest
from agentsvc.http.links import Links
from agentsvc.http.v1.types_messages import MessageBody, MessageView, from_message, to_message
from agentsvc.http.wire import PAGE_MAX, Int64, Limit, Time, find_time
from agentsvc.misfits import Problems, matching
from agentsvc.orders import (
    AgentPlugin,
    AgentType,
    Message,
    Provider,
    StartOrder,
    StartSort,
    StartStatus,
    SuggestedTask,
    TaskType,
    Trigger,
    WhenFull,
)
from agentsvc.usersecrets import check_secret_name
from agentsvc.values import MASK, Secret, to_stored

SECRETS_MAX: Final = 50

type Name = Annotated[str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", max_length=256)]
type LongText = Annotated[str, msgspec.Meta(max_length=200_000)]
type SecretName = Annotated[
    str,
    matching(
        "^[A-Za-z_][A-Za-z0-9_]*$",
        "of letters, digits and `_`, without a digit in front",
        max_length=256,
    ),
]
type NoProfile = Annotated[str, msgspec.Meta(extra_json_schema={"enum": [""]})]
type SecretValue = Annotated[str, msgspec.Meta(max_length=65536)]


class SuggestedTaskBody(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work found at a git provider."""

    git_provider: Provider
    task_type: TaskType
    repo: Name
    issue_number: Int64
    title: LongText


class PluginBody(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin the agent server loads."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    ref: Name | None = None
    repo_path: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    parameters: dict[str, Any] | None = None


class StartBody(msgspec.Struct, frozen=True, kw_only=True):
    """What POST /app-conversations reads; `processors` is read and has no effect.

    `when_full` says what to do where as many sandboxes run as may: reject, queue or pause_idle;
    left out, it is as the server is configured. The workspace begins with the files of the archive
    that `archive_id` names. There are no agent profiles to name in `agent_profile_id`.
    """

    sandbox_id: Name | None = None
    conversation_id: UUID | None = None
    initial_message: MessageBody | None = None
    system_message_suffix: LongText | None = None
    processors: list[dict[str, Any]] | None = None
    llm_model: Name | None = None
    agent_profile_id: NoProfile | None = None
    selected_repository: Name | None = None
    selected_branch: Name | None = None
    git_provider: Provider | None = None
    suggested_task: SuggestedTaskBody | None = None
    title: LongText | None = None
    trigger: Trigger | None = None
    pr_number: Annotated[list[Int64], msgspec.Meta(max_length=100)] = []
    parent_conversation_id: UUID | None = None
    agent_type: AgentType = AgentType.DEFAULT
    public: bool | None = None
    plugins: Annotated[list[PluginBody], msgspec.Meta(max_length=100)] | None = None
    when_full: WhenFull | None = None
    archive_id: UUID | None = None
    secrets: (
        Annotated[dict[SecretName, SecretValue], msgspec.Meta(max_length=SECRETS_MAX)] | None
    ) = None


class StartRequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A start request as a task echoes it: every field spelled out, secrets masked."""

    sandbox_id: str | None
    conversation_id: str | None
    initial_message: MessageView | None
    system_message_suffix: str | None
    processors: list[dict[str, Any]] | None
    llm_model: str | None
    agent_profile_id: str | None
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    suggested_task: SuggestedTaskBody | None
    title: str | None
    trigger: Trigger | None
    pr_number: list[int]
    parent_conversation_id: str | None
    agent_type: AgentType
    public: bool | None
    plugins: list[PluginBody] | None
    secrets: dict[str, str] | None


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a start, in milliseconds: what it took, null for the present one, and what for."""

    status: StartStatus
    started_at: Time
    duration_ms: int | None
    parts: dict[str, int]
    note: str | None


class StartTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """AppConversationStartTask; `queue_position` counts from 1 while it waits for room, or its turn.

    `stages` are those it went through, in order. `detail` says why it failed, what it waits for, or
    which tool servers do not start. `queued_messages` is how many wait for its end.
    """

    id: str
    created_by_user_id: str | None
    status: StartStatus
    detail: str | None
    app_conversation_id: str | None
    sandbox_id: str | None
    agent_server_url: str | None
    request: StartRequestView
    created_at: Time
    updated_at: Time
    queue_position: int | None
    queued_messages: int
    stages: list[StageView]


class StartTaskIds(msgspec.Struct, frozen=True, kw_only=True):
    """The query of the batch get of start tasks."""

    ids: list[UUID]


class StartTaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of start tasks."""

    conversation_id: UUID | None = msgspec.field(name="conversation_id__eq", default=None)
    created_at_gte: Time | None = msgspec.field(name="created_at__gte", default=None)

    def to_filter(self) -> dict[str, Any]:
        """Return the filters as the core's keyword arguments; raises InvalidRequest."""
        return {
            "conversation_id": self.conversation_id.hex if self.conversation_id else None,
            "created_at_gte": find_time(self.created_at_gte, "created_at__gte"),
        }


class StartTaskQuery(StartTaskFilter, frozen=True, kw_only=True):
    """The query of the search of start tasks."""

    sort_order: StartSort = StartSort.CREATED_AT_DESC
    page_id: str | None = None
    limit: Limit = PAGE_MAX


def to_order(body: StartBody) -> StartOrder:
    """Return what is asked for in the core's words; raises InvalidRequest."""
    parent, chosen = body.parent_conversation_id, body.conversation_id
    _refuse_profile(body.agent_profile_id)
    return StartOrder(
        sandbox_id=body.sandbox_id,
        conversation_id=chosen.hex if chosen else None,
        initial_message=_to_first_message(body),
        system_message_suffix=body.system_message_suffix,
        llm_model=body.llm_model,
        repository=body.selected_repository,
        branch=body.selected_branch,
        provider=body.git_provider,
        suggested_task=_to_suggestion(body.suggested_task),
        title=body.title,
        trigger=body.trigger,
        pr_number=tuple(body.pr_number),
        parent_conversation_id=parent.hex if parent else None,
        agent_type=body.agent_type,
        public=body.public,
        plugins=tuple(_to_plugin(plugin) for plugin in body.plugins or ()),
        when_full=body.when_full,
        archive_id=body.archive_id.hex if body.archive_id else None,
        secrets=_to_secrets(body.secrets or {}),
    )


def from_start_task(task: StartTask, links: Links) -> StartTaskView:
    """Return a start task as clients see it."""
    is_ready = task.status is StartStatus.READY
    return StartTaskView(
        id=task.id,
        created_by_user_id=None,
        status=task.status,
        detail=task.detail,
        app_conversation_id=task.conversation_id if is_ready else None,
        sandbox_id=task.sandbox_id,
        agent_server_url=_from_agent(task, links),
        request=_from_order(task.request),
        created_at=to_stored(task.created_at),
        updated_at=to_stored(task.updated_at),
        queue_position=task.queue_position,
        queued_messages=task.queued_messages,
        stages=[_from_stage(stage) for stage in task.stages],
    )


def _from_stage(stage: Stage) -> StageView:
    return StageView(
        status=stage.status,
        started_at=to_stored(stage.started_at),
        duration_ms=stage.duration_ms,
        parts=stage.parts,
        note=stage.note,
    )


def _from_agent(task: StartTask, links: Links) -> str | None:
    if task.agent_server_url is None or task.sandbox_id is None:
        return None
    return links.agent_of(task.sandbox_id)


def _from_order(order: StartOrder) -> StartRequestView:
    return StartRequestView(
        sandbox_id=order.sandbox_id,
        conversation_id=order.conversation_id,
        initial_message=from_message(order.initial_message) if order.initial_message else None,
        system_message_suffix=order.system_message_suffix,
        processors=None,
        llm_model=order.llm_model,
        agent_profile_id=order.agent_profile_id,
        selected_repository=order.repository,
        selected_branch=order.branch,
        git_provider=order.provider,
        suggested_task=_from_suggestion(order.suggested_task),
        title=order.title,
        trigger=order.trigger,
        pr_number=list(order.pr_number),
        parent_conversation_id=order.parent_conversation_id,
        agent_type=order.agent_type,
        public=order.public,
        plugins=[_from_plugin(plugin) for plugin in order.plugins] or None,
        secrets=dict.fromkeys(order.secrets, MASK) or None,
    )


def _to_first_message(body: StartBody) -> Message | None:
    if body.initial_message is None:
        return None
    given, loc = body.initial_message, ("body", "initial_message")
    message = to_message(given.role, given.content, loc=loc)
    if not message.is_empty:
        return message
    if body.suggested_task is None and body.trigger is None:
        raise InvalidRequest(
            "The message is empty: it needs a text or an image; leave `initial_message` out to"
            " start a conversation that waits for one",
            loc=(*loc, "content"),
            kind="too_short",
        )
    # Front ends that say what made them start it send the message of a form nobody filled in.
    return None


def _refuse_profile(given: str | None) -> None:
    if given:
        raise InvalidRequest(
            "There is no such agent profile, and no other one here: leave `agent_profile_id` out",
            loc=("body", "agent_profile_id"),
            kind="enum",
        )


def _to_secrets(given: Mapping[str, str]) -> dict[str, Secret]:
    problems = Problems()
    for name in given:
        with problems.noted():
            check_secret_name(name, loc=("body", "secrets", name))
    problems.refuse()
    return {name: Secret(value) for name, value in given.items()}


def _to_suggestion(body: SuggestedTaskBody | None) -> SuggestedTask | None:
    if body is None:
        return None
    return SuggestedTask(
        provider=body.git_provider,
        task_type=body.task_type,
        repo=body.repo,
        issue_number=body.issue_number,
        title=body.title,
    )


def _from_suggestion(task: SuggestedTask | None) -> SuggestedTaskBody | None:
    if task is None:
        return None
    return SuggestedTaskBody(
        git_provider=Provider(task.provider),
        task_type=task.task_type,
        repo=task.repo,
        issue_number=task.issue_number,
        title=task.title,
    )


def _to_plugin(body: PluginBody) -> AgentPlugin:
    return AgentPlugin(
        source=body.source, ref=body.ref, repo_path=body.repo_path, parameters=body.parameters
    )


def _from_plugin(plugin: AgentPlugin) -> PluginBody:
    return PluginBody(
        source=plugin.source,
        ref=plugin.ref,
        repo_path=plugin.repo_path,
        parameters=plugin.parameters,
    )
