"""The start of a conversation: the request, its echo and the task, and handlers of start tasks."""

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
    checked_by,
    copy_to,
    matching,
    view_of,
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
"""How clients call what the core has under shorter names."""

type Name = Annotated[str, matching(r"\A[^\0\r\n]*\Z", "on one line, without NUL", max_length=256)]
type LongText = Annotated[str, msgspec.Meta(max_length=200_000)]
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
            "There is no such agent profile, and no other one here: leave `agent_profile_id` out",
            loc=loc,
            kind="enum",
        )


type NoProfile = Annotated[
    str, msgspec.Meta(extra_json_schema={"enum": [""]}), checked_by(_refuse_profile)
]
type SecretValue = Annotated[SentSecret, msgspec.Meta(max_length=65536)]


class SuggestedTaskBody(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """A piece of work found at a git provider."""

    provider: Provider
    """Where it was found"""
    task_type: TaskType
    """What there is to do"""
    repo: Name
    """The repository it is in, as `owner/name`"""
    issue_number: Int64
    """Number of the issue or pull request"""
    title: LongText
    """Title of the issue or pull request"""


class PluginBody(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin the agent server loads."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=2048)]
    """Where the plugin is: a git URL, `github:owner/name`, or a path in the sandbox; 1 to 2048
    characters"""
    ref: Name | None = None
    """Commit, branch or tag of it; null: the default branch"""
    repo_path: Annotated[str, msgspec.Meta(max_length=1024)] | None = None
    """Directory of the plugin in its repository; null: the root"""
    parameters: dict[str, Any] | None = None
    """Kept and shown only; null: none"""


class StartBody(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """What POST /app-conversations reads; `processors` is read and has no effect.

    `when_full` says what to do where as many sandboxes run as may: reject, queue or pause_idle;
    left out, it is as the server is configured. The workspace begins with the files of the archive
    that `archive_id` names. There are no agent profiles to name in `agent_profile_id`.
    """

    sandbox_id: Name | None = None
    """Sandbox to put the conversation in; a paused one is resumed. Null: as
    `sandbox_grouping_strategy` says, a new one by default"""
    conversation_id: UUID | None = None
    """Id to give the conversation, with or without dashes; null: a random one. With an id that is
    taken, the same request answers with its task, and another one is refused (409)"""
    initial_message: MessageBody | None = None
    """What the user says first, which starts the agent; null: the agent waits for a message. Not
    together with `suggested_task`; with that, or with `trigger`, an empty message counts as null"""
    system_message_suffix: LongText | None = None
    """Text behind the system prompt of the agent, at most 200,000 characters; null: none"""
    processors: list[dict[str, Any]] | None = None
    """Read, and without effect; null: none"""
    llm_model: Name | None = None
    """Provider and name of the model; null: the one of the settings"""
    agent_profile_id: NoProfile | None = None
    """Saved agent to start with; there are none, so it is null, empty or left out"""
    repository: git.SentRepository | None = None
    """Repository to clone into the workspace: `owner/name`, or a URL; null: an empty workspace"""
    branch: git.SentBranch | None = None
    """Branch to check out; null: the default branch"""
    provider: Provider | None = None
    """Where the repository is; null: where the user has a token for and it is found"""
    suggested_task: SuggestedTaskBody | None = None
    """Something to do that was found at a git provider; it becomes the first message. Null: none"""
    title: LongText | None = None
    """Title of the conversation, at most 200,000 characters; null: the agent makes one from the
    first message"""
    trigger: Trigger | None = None
    pr_number: Annotated[list[Int64], msgspec.Meta(max_length=100)] = []
    """Numbers of pull requests it is about, at most 100; they are kept and shown only"""
    parent_conversation_id: UUID | None = None
    """Conversation this one is a part of, whose sandbox and repository it shares; null: none"""
    agent_type: AgentType = AgentType.DEFAULT
    """Role of the agent; `plan` writes a plan into `PLAN.md` and changes nothing else"""
    public: bool | None = None
    """Kept and shown only, unless the operator has set `sharing.public_flag`: true shares the
    conversation then. Null: not said"""
    plugins: Annotated[list[PluginBody], msgspec.Meta(max_length=100)] | None = None
    """Plugins the agent loads, at most 100; null: none"""
    when_full: WhenFull | None = None
    """What to do where as many sandboxes run as may; null: as the server is configured"""
    archive_id: UUID | None = None
    """Saved workspace whose files the new one begins with, with or without dashes; null: none"""
    environment_id: EnvironmentId | None = None
    """Prepared environment to begin with a copy of, or `none`; null: the one of the repository that
    is prepared for the same sandbox spec, if the user has one"""
    secrets: Annotated[dict[EnvName, SecretValue], msgspec.Meta(max_length=SECRETS_MAX)] | None = (
        None
    )
    """Secrets of this conversation only, by name: at most 50, values up to 64 KiB. They win over
    the user's own; null: none"""


class StartRequestView(msgspec.Struct, frozen=True, kw_only=True, rename=GIT_NAMES):
    """A start request as a task echoes it: every field spelled out, secrets masked."""

    sandbox_id: str | None
    """Sandbox that was asked for; null: any"""
    conversation_id: str | None
    """Id that was asked for, 32 hex digits; null: any"""
    initial_message: MessageView | None
    """First message; null: none"""
    system_message_suffix: str | None
    """Text behind the system prompt; null: none"""
    processors: list[dict[str, Any]] | None
    """Always null"""
    llm_model: str | None
    """Model that was asked for; null: the one of the settings"""
    agent_profile_id: str | None
    """Saved agent that was asked for; null: none"""
    repository: str | None
    """Repository that was asked for; null: none"""
    branch: str | None
    """Branch that was asked for; null: the default branch"""
    provider: Provider | None
    """Where the repository is; null if that was not said"""
    suggested_task: SuggestedTaskBody | None
    """Task that was asked for; null: none"""
    title: str | None
    """Title that was asked for; null: none"""
    trigger: Trigger | None
    pr_number: list[int]
    parent_conversation_id: str | None
    """Conversation it is a part of, 32 hex digits; null: none"""
    agent_type: AgentType
    """Role of the agent"""
    public: bool | None
    """What the request said; null: nothing"""
    plugins: list[PluginBody] | None
    """Plugins the agent loads; null: none"""
    secrets: dict[str, str] | None
    """Names of its secrets, with stars as values; null: none"""


class StageView(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a start, in milliseconds: what it took, null for the present one, and what for."""

    status: StartStatus
    """The stage"""
    started_at: Time
    """When it began, in UTC"""
    duration_ms: int | None
    """Milliseconds it took; null for the present one"""
    parts: dict[str, int]
    """Milliseconds that parts of it took, by name"""
    note: str | None
    """What else is to be known of it, for people; null: nothing"""


class StartTaskView(msgspec.Struct, frozen=True, kw_only=True):
    """AppConversationStartTask; `queue_position` counts from 1 while it waits for room, or its turn.

    `stages` are those it went through, in order. `detail` says why it failed, what it waits for, or
    which tool servers do not start. `queued_messages` is how many wait for its end.
    """

    id: str
    """Id of the task, 32 hex digits"""
    created_by_user_id: str | None
    """Always null: one sees only tasks of one's own"""
    status: StartStatus
    """How far the start has come"""
    detail: str | None
    """Why it failed, or what it waits for, for people; null: nothing to say"""
    app_conversation_id: str | None
    """Id of the conversation, 32 hex digits; null until `status` is `READY`"""
    sandbox_id: str | None
    """Sandbox of the conversation; null until it is chosen"""
    agent_server_url: str | None
    """Where its agent server is reached, through this server; null until it answers"""
    request: StartRequestView
    """What was asked for, every field spelled out, secrets as stars"""
    created_at: Time
    updated_at: Time
    queue_position: int | None
    """Its place, counted from 1, while it waits for room or its turn; null if it does not"""
    queued_messages: int
    """How many messages wait until its agent can take them"""
    stages: list[StageView]
    """The stages it went through, in order; the last one is the present one"""


class StartTaskIds(msgspec.Struct, frozen=True, kw_only=True):
    """The query of the batch get of start tasks."""

    ids: list[UUID]
    """Ids of at most 100 tasks, with or without dashes. Each is answered in its place, null for one
    that is unknown"""


class StartTaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of start tasks."""

    conversation_id: UUID | None = msgspec.field(name="conversation_id__eq", default=None)
    """Only tasks of this conversation, with or without dashes; left out: all"""
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
    """What the list is sorted by; `_DESC` is the latest first"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


def to_order(body: StartBody) -> StartOrder:
    """Return what is asked for in the core's words; raises InvalidRequest."""
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
    """Return a start task as clients see it."""
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
    # Front ends that say what made them start it send the message of a form nobody filled in.
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

    A list of as many items as `ids`, in their order, null for each that is unknown.
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

    With the filters of the search.
    """
    wanted = query.to_filter()
    return await request.app[CONVERSATIONS].starts.count(user_of(request), **wanted)
