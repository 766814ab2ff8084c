"""Start of a conversation: wire structs of the request and the start task, and handlers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from aiohttp import web

from agentsvc.base import (
    MASK,
    BadRequest,
    InvalidRequest,
    Problems,
    Secret,
    SentSecret,
    copy_to,
    matching,
    view_of,
    with_check,
)
from agentsvc.conversations import StartTask
from agentsvc.domain import (
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
from agentsvc.domain import repositories as git
from agentsvc.http.keys import CONVERSATIONS, user_of
from agentsvc.http.routes import EXAMPLE_ID, Routes
from agentsvc.http.urls import Links, links_of
from agentsvc.http.v1.sandboxes import check_ids
from agentsvc.http.v1.types_messages import MessageBody, MessageView, from_message, to_message
from agentsvc.http.wire import PAGE_MAX, EnvName, Int64, Limit, Page, Time, find_time
from agentsvc.settings import check_secret_name

SECRETS_MAX: Final = 50
GIT_NAMES: Final = {
    "repository": "selected_repository",
    "branch": "selected_branch",
    "provider": "git_provider",
}
"""JSON names of fields that have shorter names in the domain."""

type Name = Annotated[str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", max_length=256)]
type BodyText = Annotated[str, msgspec.Meta(max_length=200_000)]
type EnvironmentId = Annotated[
    str,
    matching(
        "^(none|[0-9A-Fa-f]{8}(-?[0-9A-Fa-f]{4}){3}-?[0-9A-Fa-f]{12})$",
        "a UUID, with or without dashes, or `none`",
        max_length=36,
    ),
]


def _refuse_profile(
    given: str | None, *, loc: Sequence[str | int] = ("body", "agent_profile_id")
) -> None:
    if given:
        raise InvalidRequest(
            "This server has no agent profiles: leave `agent_profile_id` out",
            loc=loc,
            kind="enum",
        )


type NoProfile = Annotated[
    str, msgspec.Meta(extra_json_schema={"enum": [""]}), with_check(_refuse_profile)
]
type SecretValue = Annotated[SentSecret, msgspec.Meta(max_length=65536)]


class SuggestedTaskBody(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """A suggested task from a git provider."""

    provider: Provider
    """Git provider of the task"""
    task_type: TaskType
    """Type of the task"""
    repo: Name
    """Repository of the task, as `owner/name`"""
    issue_number: Int64
    """Number of the issue or pull request"""
    title: BodyText
    """Title of the issue or pull request"""


class PluginBody(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin for the agent server to load."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    """Source of the plugin: a git URL, `github:owner/name`, or a path in the sandbox; 1 to 2048
    characters"""
    ref: Name | None = None
    """Commit, branch or tag of the plugin; null: the default branch"""
    repo_path: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    """Directory of the plugin in its repository; null: the root"""
    parameters: dict[str, Any] | None = None
    """Stored and returned, without effect; null: none"""


class StartBody(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """Request to start a conversation; all fields are optional."""

    sandbox_id: Name | None = None
    """Sandbox for the conversation; a paused sandbox is resumed. Null: chosen by
    `sandbox_grouping_strategy`, by default a new one"""
    conversation_id: UUID | None = None
    """Id for the conversation, with or without dashes; null: a random id. If the id is taken, the
    same request returns the existing task, and a different request is refused (409)"""
    initial_message: MessageBody | None = None
    """First message of the user, which starts the agent; null: the agent waits for a message. Not
    allowed together with `suggested_task`; with that, or with `trigger`, an empty message counts as
    null"""
    system_message_suffix: BodyText | None = None
    """Text appended to the agent's system prompt, at most 200,000 characters; null: none"""
    processors: list[dict[str, Any]] | None = None
    """Accepted without effect; null: none"""
    llm_model: Name | None = None
    """Provider and name of the model; null: the model of the settings"""
    agent_profile_id: NoProfile | None = None
    """Agent profile; there are no agent profiles, so it has to be null, empty or omitted"""
    repository: git.SentRepository | None = None
    """Repository to clone into the workspace: `owner/name`, or a URL; null: an empty workspace"""
    branch: git.SentBranch | None = None
    """Branch to check out; null: the default branch"""
    provider: Provider | None = None
    """Git provider of the repository; null: the first one at which it is found with a token of the
    user"""
    suggested_task: SuggestedTaskBody | None = None
    """Suggested task from a git provider; it becomes the first message. Null: none"""
    title: BodyText | None = None
    """Title of the conversation, at most 200,000 characters; null: generated from the first
    message"""
    trigger: Trigger | None = None
    pr_number: Annotated[list[Int64], msgspec.Meta(max_length=100)] = []
    """Numbers of related pull requests, at most 100; stored and returned, without effect"""
    parent_conversation_id: UUID | None = None
    """Parent conversation, whose sandbox and repository the new one shares; null: none"""
    agent_type: AgentType = AgentType.DEFAULT
    """Type of the agent; `plan` writes a plan to `PLAN.md` and changes no other file"""
    public: bool | None = None
    """True shares the conversation if the operator has set `sharing.public_flag`; otherwise it is
    stored and returned, without effect. Null: not set"""
    plugins: Annotated[list[PluginBody], msgspec.Meta(max_length=100)] | None = None
    """Plugins for the agent server to load, at most 100; null: none"""
    when_full: WhenFull | None = None
    """What to do when the limit of running sandboxes is reached; null: as the server is
    configured"""
    archive_id: UUID | None = None
    """Archive whose files the workspace starts with, with or without dashes; null: none"""
    environment_id: EnvironmentId | None = None
    """Prepared environment that is copied into the workspace, or `none`; null: the user's
    environment for the repository and the sandbox spec, if there is one"""
    secrets: Annotated[dict[EnvName, SecretValue], msgspec.Meta(max_length=SECRETS_MAX)] | None = (
        None
    )
    """Secrets of this conversation only, by name: at most 50, values up to 64 KiB. They override
    the user's secrets; null: none"""


class StartRequestView(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """The request of a start task, with all fields, secrets masked."""

    sandbox_id: str | None
    """Requested sandbox; null: any"""
    conversation_id: str | None
    """Requested id, 32 hex digits; null: any"""
    initial_message: MessageView | None
    """First message; null: none"""
    system_message_suffix: str | None
    """Text appended to the system prompt; null: none"""
    processors: list[dict[str, Any]] | None
    """Always null"""
    llm_model: str | None
    """Requested model; null: the model of the settings"""
    agent_profile_id: str | None
    """Always null: there are no agent profiles"""
    repository: str | None
    """Requested repository; null: none"""
    branch: str | None
    """Requested branch; null: the default branch"""
    provider: Provider | None
    """Git provider of the repository; null if the request had none"""
    suggested_task: SuggestedTaskBody | None
    """Suggested task; null: none"""
    title: str | None
    """Requested title; null: none"""
    trigger: Trigger | None
    pr_number: list[int]
    parent_conversation_id: str | None
    """Parent conversation, 32 hex digits; null: none"""
    agent_type: AgentType
    """Type of the agent"""
    public: bool | None
    """`public` of the request; null: not set"""
    plugins: list[PluginBody] | None
    """Plugins for the agent server to load; null: none"""
    secrets: dict[str, str] | None
    """Names of the secrets, with masked values; null: none"""


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a start, with its duration."""

    status: StartStatus
    """Status of the task during the stage"""
    started_at: Time
    """When the stage began, in UTC"""
    duration_ms: int | None
    """Duration of the stage in milliseconds; null for the present stage"""
    parts: dict[str, int]
    """Durations of parts of the stage in milliseconds, by name"""
    note: str | None
    """Remark on the stage, for people; null: none"""


class StartTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """AppConversationStartTask: the background start of a conversation."""

    id: str
    """Id of the task, 32 hex digits"""
    created_by_user_id: str | None
    """Always null: users see only their own tasks"""
    status: StartStatus
    """Status of the start"""
    detail: str | None
    """Why the start failed, what it waits for, or which tool servers did not start, for people;
    null: none"""
    app_conversation_id: str | None
    """Id of the conversation, 32 hex digits; null until `status` is `READY`"""
    sandbox_id: str | None
    """Sandbox of the conversation; null until its agent server is ready"""
    agent_server_url: str | None
    """URL of the agent server, proxied by this server; null until the agent server is ready"""
    request: StartRequestView
    """The request, with all fields, secrets masked"""
    created_at: Time
    updated_at: Time
    queue_position: int | None
    """Position in the queue, starting at 1, while the task waits for the limit of running sandboxes
    or for its turn; null otherwise"""
    queued_messages: int
    """Number of messages not yet delivered to the agent"""
    stages: list[StageView]
    """The stages so far, in order; the last one is the present stage"""


class StartTaskIds(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the batch get of start tasks."""

    ids: list[UUID]
    """At most 100 task ids, with or without dashes. The response has one item per id in the same
    order, null for an unknown id"""


class StartTaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of start tasks."""

    conversation_id: UUID | None = msgspec.field(name="conversation_id__eq", default=None)
    """Only tasks of this conversation, an id with or without dashes; omitted: all"""
    created_at_gte: Time | None = msgspec.field(name="created_at__gte", default=None)

    def to_filter(self) -> dict[str, Any]:
        """Convert the filters to keyword arguments of the domain; raises InvalidRequest."""
        return {
            "conversation_id": self.conversation_id.hex if self.conversation_id else None,
            "created_at_gte": find_time(self.created_at_gte, "created_at__gte"),
        }


class StartTaskQuery(StartTaskFilter, frozen=True, kw_only=True):
    """Query of the search of start tasks."""

    sort_order: StartSort = StartSort.CREATED_AT_DESC
    """Sort order; `_DESC` lists the latest first"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


def to_order(body: StartBody) -> StartOrder:
    """Convert the request to a start order; raises InvalidRequest."""
    parent, chosen, task = body.parent_conversation_id, body.conversation_id, body.suggested_task
    message, secrets = None, dict[str, Secret]()
    problems = Problems()
    with problems.noted():
        _refuse_profile(body.agent_profile_id)
    with problems.noted():
        message = _to_first_message(body)
    with problems.noted():
        secrets = _to_secrets(body.secrets or {})
    problems.refuse()
    return copy_to(
        StartOrder,
        body,
        conversation_id=chosen.hex if chosen else None,
        initial_message=message,
        suggested_task=copy_to(SuggestedTask, task) if task else None,
        pr_number=tuple(body.pr_number),
        parent_conversation_id=parent.hex if parent else None,
        plugins=tuple(copy_to(AgentPlugin, plugin) for plugin in body.plugins or ()),
        archive_id=body.archive_id.hex if body.archive_id else None,
        environment_id=body.environment_id and body.environment_id.replace("-", "").lower(),
        secrets=secrets,
    )


def from_start_task(task: StartTask, links: Links) -> StartTaskView:
    """Convert a start task to its wire struct."""
    is_ready = task.status is StartStatus.READY
    sandbox_id = None if task.agent_server_url is None else task.sandbox_id
    return view_of(
        StartTaskView,
        task,
        created_by_user_id=None,
        app_conversation_id=task.conversation_id if is_ready else None,
        agent_server_url=None if sandbox_id is None else links.agent_of(sandbox_id),
        request=_from_order(task.request),
        stages=[view_of(StageView, stage) for stage in task.stages],
    )


def _from_order(order: StartOrder) -> StartRequestView:
    task = order.suggested_task
    return copy_to(
        StartRequestView,
        order,
        initial_message=from_message(order.initial_message) if order.initial_message else None,
        processors=None,
        agent_profile_id=None,
        suggested_task=copy_to(SuggestedTaskBody, task) if task else None,
        pr_number=list(order.pr_number),
        plugins=[copy_to(PluginBody, plugin) for plugin in order.plugins] or None,
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
    # Front ends that send a trigger or a suggested task also send the message of an empty form.
    return None


def _to_secrets(given: Mapping[str, str]) -> dict[str, Secret]:
    problems = Problems()
    for name in given:
        with problems.noted():
            check_secret_name(name, loc=("body", "secrets", name))
    problems.refuse()
    return {name: Secret(value) for name, value in given.items()}


ROUTES: Final = Routes("/api/v1/app-conversations/start-tasks")


@ROUTES.add("GET", "", errors=(BadRequest,), example={"ids": [EXAMPLE_ID]})
async def get_start_tasks(request: web.Request, query: StartTaskIds) -> list[StartTaskView | None]:
    """Get start tasks by id.

    The response has one item per id, in the same order, null for an unknown id.
    """
    ids = check_ids([each.hex for each in query.ids])
    tasks = await request.app[CONVERSATIONS].starts.find_many(user_of(request), ids)
    links = links_of(request)
    return [from_start_task(task, links) if task else None for task in tasks]


@ROUTES.add("GET", "/search", example={"limit": 10})
async def search_start_tasks(request: web.Request, query: StartTaskQuery) -> Page[StartTaskView]:
    """Search start tasks.

    Newest first unless `sort_order` says otherwise.
    """
    tasks, next_page_id = await request.app[CONVERSATIONS].starts.search(
        user_of(request),
        sort=query.sort_order,
        page_id=query.page_id,
        limit=query.limit,
        **query.to_filter(),
    )
    links = links_of(request)
    return Page(items=[from_start_task(task, links) for task in tasks], next_page_id=next_page_id)


@ROUTES.add("GET", "/count")
async def count_start_tasks(request: web.Request, query: StartTaskFilter) -> int:
    """Count start tasks.

    Takes the filters of the search.
    """
    wanted = query.to_filter()
    return await request.app[CONVERSATIONS].starts.count(user_of(request), **wanted)
