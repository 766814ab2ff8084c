"""App conversations: wire structs, their conversion to and from the domain, and handlers."""

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from agentsvc.base import (
    BadRequest,
    NotFound,
    QuotaExceeded,
    ShownSecret,
    TooManyRequests,
    copy_to,
    matching,
    parse_uuid,
    stated,
    view_of,
)
from agentsvc.conversations import (
    SERVER_TAG,
    ConversationPatch,
    ConversationQuery,
    ConversationView,
    Metrics,
    Queued,
    StartTask,
)
from agentsvc.domain import ConversationSort, ExecutionStatus, Provider, Trigger
from agentsvc.domain import repositories as git
from agentsvc.http.keys import CONVERSATIONS, PENDING, user_of
from agentsvc.http.routes import EXAMPLE_ID, OF_AGENTS, OF_STARTS, Effect, Example, Routes
from agentsvc.http.urls import Links, links_of
from agentsvc.http.v1.start_tasks import (
    GIT_NAMES,
    BodyText,
    StartBody,
    StartTaskView,
    from_start_task,
    to_order,
)
from agentsvc.http.v1.types_messages import NOT_EMPTY, RawPart, to_nonempty_message
from agentsvc.http.wire import (
    PAGE_MAX,
    SUCCESS,
    Limit,
    Page,
    Success,
    Time,
    find_time,
    json_response,
    stream_array,
)
from agentsvc.sandboxes import SandboxStatus

IDS_MAX: Final = 99
LABELS_MAX: Final = 20
_MAX_SHOWN: Final = 1024

type Repository = Annotated[
    str,
    matching(
        r"\A[^\s;&|$`/\0]+(?:/[^\s;&|$`/\0]+)+\Z",
        "that looks like `owner/name`, without spaces and the signs `;`, `&`, `|` and `$`",
        max_length=256,
    ),
]

type Label = Annotated[
    str, matching(r"\A[^\0\r\n]*\S[^\0\r\n]*\Z", "on one line, and not empty", max_length=64)
]

type Branch = Annotated[
    str, msgspec.Meta(max_length=git.MAX_BRANCH_BYTES), stated(pattern=git.BRANCH_PATTERN)
]


class LaunchedAgentProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The agent profile that a conversation was started with."""

    agent_profile_id: str
    """Id of the agent profile"""
    revision: int
    """Revision of the profile at the start"""


class AppConversation(msgspec.Struct, frozen=True, kw_only=True):
    """AppConversation: a conversation and the state of its sandbox.

    `queued_messages` counts the messages not yet delivered to the agent. When a queued message
    starts the agent, `execution_status` is `running` from the moment it is queued, unless the agent
    waits for confirmation.
    """

    id: str
    """Id of the conversation, 32 hex digits"""
    created_by_user_id: str | None
    """Always null: users see only their own conversations"""
    sandbox_id: str
    """Id of the sandbox of the conversation; empty while no sandbox is assigned"""
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    title: str | None
    """Title; `Conversation` and five hex digits until a title is generated or set. Null if it was
    cleared"""
    trigger: Trigger | None
    pr_number: list[int]
    llm_model: str | None
    """Provider and name of the model; null until it is known"""
    agent_kind: str
    """Kind of the agent: `openhands`, or `acp` for an agent of another vendor"""
    metrics: Metrics | None
    """Costs and tokens so far; null before the first request to the model"""
    parent_conversation_id: str | None
    """Id of the parent conversation, 32 hex digits; null if there is no parent"""
    sub_conversation_ids: list[str]
    """Ids of the sub-conversations, 32 hex digits each"""
    public: bool | None
    """Value of `public` from the start request or a later change; it shares the conversation only
    if the operator has set `sharing.public_flag`. Null if it was never set"""
    tags: dict[str, str]
    """Short values by name, such as the origin of the workspace"""
    labels: list[str]
    """Labels set by the user; front ends list `pinned` first and hide `archived`"""
    created_at: Time
    updated_at: Time
    sandbox_status: SandboxStatus
    """State of the sandbox; `MISSING` if it does not exist any more"""
    execution_status: ExecutionStatus | None
    """State of the agent; null unless the sandbox is running"""
    queued_messages: int
    """Number of messages not yet delivered to the agent"""
    conversation_url: str | None
    """URL of the conversation at the agent server, proxied by this server; null unless the sandbox
    is running"""
    session_api_key: ShownSecret | None
    """Key for requests to that URL, sent as `X-Session-API-Key`. It may change when the sandbox is
    resumed; null unless the sandbox is running"""
    acp_server: str | None
    """Name of the ACP agent if `agent_kind` is `acp`; otherwise null"""
    launched_agent_profile: LaunchedAgentProfile | None
    """Always null: there are no agent profiles"""


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of conversations."""

    title_contains: str | None = msgspec.field(name="title__contains", default=None)
    """Only conversations with this text in their title, ignoring case; omitted: all"""
    created_at_gte: Time | None = msgspec.field(name="created_at__gte", default=None)
    created_at_lt: Time | None = msgspec.field(name="created_at__lt", default=None)
    updated_at_gte: Time | None = msgspec.field(name="updated_at__gte", default=None)
    updated_at_lt: Time | None = msgspec.field(name="updated_at__lt", default=None)
    sandbox_id: str | None = msgspec.field(name="sandbox_id__eq", default=None)
    """Only conversations in this sandbox; omitted: in all sandboxes"""


class ConversationSearch(ConversationFilter, frozen=True, kw_only=True):
    """Query of the search of conversations."""

    include_sub_conversations: bool = False
    """Whether to list sub-conversations, too"""
    sort_order: ConversationSort = ConversationSort.CREATED_AT_DESC
    """Sort order; `_DESC` lists the latest time, or the last title, first"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


class ConversationIds(ConversationSearch, frozen=True, kw_only=True):
    """Query of the batch get; without ids the operation is a search."""

    ids: Annotated[list[Annotated[str, stated(format="uuid")]], stated(maxItems=IDS_MAX)] = []
    """At most 99 conversation ids, with or without dashes. The response has one item per id in the
    same order, null for an unknown id; omitted: a page of all conversations"""


class PatchBody(
    msgspec.Struct, frozen=True, kw_only=True, rename={**GIT_NAMES, "is_public": "public"}
):
    """Changes to a conversation; fields that are omitted stay unchanged, null clears a field."""

    title: BodyText | UnsetType | None = UNSET
    """New title; null: cleared, omitted: unchanged"""
    is_public: bool | UnsetType | None = UNSET
    """New value of `public`. True shares the conversation if the operator has set
    `sharing.public_flag`; otherwise it has no effect. Null: cleared, omitted: unchanged"""
    repository: Repository | UnsetType | None = UNSET
    """Repository to show, as `owner/name`; nothing is cloned. Null: cleared, omitted: unchanged"""
    branch: Branch | UnsetType | None = UNSET
    """Branch to show; nothing is checked out. Null: cleared, omitted: unchanged"""
    provider: Provider | UnsetType | None = UNSET
    """Git hosting service to show; null: cleared, omitted: unchanged"""
    labels: Annotated[list[Label], msgspec.Meta(max_length=LABELS_MAX)] | UnsetType | None = UNSET
    """Labels that replace the present ones, at most 20; null: no labels, omitted: unchanged"""


class SendMessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a conversation that is ready."""

    role: Literal["user"] = "user"
    """Role of the author; always the user"""
    content: Annotated[list[RawPart], msgspec.Meta(min_length=1, max_length=1000), NOT_EMPTY]
    """The parts of the message, 1 to 1000; at least one is an image or a non-empty text"""
    run: bool = True
    """Whether the message starts the agent; false: the agent reads it when it next runs"""


class SendMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """Response to a message."""

    success: bool = True
    """Always true"""
    sandbox_status: SandboxStatus
    """State of the sandbox when the message was accepted"""
    message: str | None = None
    """Always null"""


def to_ids(texts: Sequence[str]) -> list[str]:
    """Parse the ids of the batch get; raises BadRequest for too many or invalid ids."""
    if len(texts) > IDS_MAX:
        raise BadRequest(f"Too many ids requested. Maximum is {IDS_MAX}.")
    ids = [parse_uuid(text) for text in texts]
    bad = [text for text, found in zip(texts, ids, strict=True) if found is None]
    if bad:
        raise BadRequest(f"Invalid UUID format for ids: {bad}")
    return [found for found in ids if found is not None]


def to_query(
    wanted: ConversationFilter, *, include_children: bool, sort: ConversationSort | None = None
) -> ConversationQuery:
    """Convert the filters to the query of the domain; raises InvalidRequest."""
    return ConversationQuery(
        title_contains=wanted.title_contains,
        sandbox_id=wanted.sandbox_id,
        include_children=include_children,
        sort=sort or ConversationSort.CREATED_AT_DESC,
        created_at_gte=find_time(wanted.created_at_gte, "created_at__gte"),
        created_at_lt=find_time(wanted.created_at_lt, "created_at__lt"),
        updated_at_gte=find_time(wanted.updated_at_gte, "updated_at__gte"),
        updated_at_lt=find_time(wanted.updated_at_lt, "updated_at__lt"),
    )


@lru_cache(maxsize=_MAX_SHOWN)
def from_view(view: ConversationView, links: Links) -> AppConversation:
    """Convert a conversation to its wire struct; cached, as most are read often between changes."""
    conversation, status = view.conversation, view.sandbox_status
    has_agent = status is SandboxStatus.RUNNING
    return view_of(
        AppConversation,
        conversation,
        created_by_user_id=None,
        sandbox_id=conversation.sandbox_id or "",
        pr_number=list(conversation.pr_number),
        parent_conversation_id=conversation.parent_id,
        sub_conversation_ids=list(conversation.sub_ids),
        public=conversation.is_public,
        labels=list(conversation.facts.labels),
        sandbox_status=status,
        execution_status=view.execution_status if has_agent else None,
        conversation_url=links.conversation(view.sandbox, conversation.id) if has_agent else None,
        session_api_key=links.shown(view.session_api_key) if has_agent else None,
        acp_server=conversation.tags.get(SERVER_TAG),
        launched_agent_profile=None,
    )


PREFIX: Final = "/api/v1/app-conversations"


class _StartedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The id of a start task, read from the first item of a stream."""

    id: str


_STARTED_TASKS = msgspec.json.Decoder(list[_StartedTask])

ROUTES: Final = Routes(PREFIX)


def answer_task(request: web.Request, task: StartTask) -> web.Response:
    """Return the response with a start task."""
    return json_response(from_start_task(task, links_of(request)))


def _answer_tasks(request: web.Request, task: StartTask) -> web.Response:
    return json_response([from_start_task(task, links_of(request))])


async def _continue_stream(request: web.Request, first_item: bytes) -> web.StreamResponse:
    [task] = _STARTED_TASKS.decode(first_item)
    return await stream_array(request, _follow(request, task.id))


def _answer_queued(_request: web.Request, queued: Queued) -> web.Response:
    return json_response(SendMessageView(sandbox_status=queued.sandbox_status))


_START_EXAMPLE: Final = Example(
    body={
        "initial_message": {"content": [{"type": "text", "text": "Fix the login page"}]},
        "title": "Login page",
    }
)


@ROUTES.add(
    "POST",
    "",
    StartTaskView,
    effect=Effect(kind=StartTask, answer=answer_task),
    errors=OF_STARTS,
    example=_START_EXAMPLE,
)
async def post_app_conversation(request: web.Request, body: StartBody) -> StartTask:
    """Start a conversation; returns the start task.

    The response is a start task with the status `WORKING`, never the conversation: the start
    continues in the background. Poll the task until its status is `READY`, and
    `app_conversation_id` is set, or `ERROR`, and `detail` is the reason.
    """
    return await request.app[CONVERSATIONS].starts.start(user_of(request), to_order(body))


@ROUTES.add(
    "GET",
    "",
    errors=(BadRequest,),
    example={"ids": [EXAMPLE_ID]},
)
async def get_app_conversations(
    request: web.Request, query: ConversationIds
) -> list[AppConversation | None] | Page[AppConversation]:
    """Get conversations by id, or a page of all without ids.

    With `ids` the response is a list with one item per id, in the same order, null for an unknown
    id. Without `ids` it is a page, as from the search.
    """
    ids = to_ids(query.ids)
    if not ids:
        return await search_app_conversations(request, query)
    views = await request.app[CONVERSATIONS].find_many(user_of(request), ids)
    links = links_of(request)
    return [from_view(view, links) if view else None for view in views]


@ROUTES.add(
    "POST",
    "/stream-start",
    list[StartTaskView],
    errors=OF_STARTS,
    example=_START_EXAMPLE,
    is_stream=True,
    effect=Effect(kind=StartTask, answer=_answer_tasks),
    goes_on=_continue_stream,
)
async def post_stream_start(request: web.Request, body: StartBody) -> web.StreamResponse:
    """Start a conversation and stream the progress of the start task.

    The response is a JSON array that is sent item by item: the task at once, and again whenever its
    status changes, until the start ends. Each item is on a line of its own.
    """
    task = await request.app[CONVERSATIONS].starts.start(user_of(request), to_order(body))
    return await stream_array(request, _follow(request, task.id))


@ROUTES.add("GET", "/search", example={"title__contains": "fix", "limit": 10})
async def search_app_conversations(
    request: web.Request, query: ConversationSearch
) -> Page[AppConversation]:
    """Search your conversations.

    Newest first unless `sort_order` says otherwise. A conversation has to match all filters.
    """
    wanted = to_query(
        query, include_children=query.include_sub_conversations, sort=query.sort_order
    )
    views, next_page_id = await request.app[CONVERSATIONS].search(
        user_of(request), wanted, page_id=query.page_id, limit=query.limit
    )
    links = links_of(request)
    return Page(items=[from_view(view, links) for view in views], next_page_id=next_page_id)


@ROUTES.add("GET", "/count")
async def count_app_conversations(request: web.Request, query: ConversationFilter) -> int:
    """Count conversations.

    Takes the filters of the search; sub-conversations are counted, too.
    """
    wanted = to_query(query, include_children=True)
    return await request.app[CONVERSATIONS].count(user_of(request), wanted)


@ROUTES.add("GET", "/{conversation_id}")
async def get_app_conversation(request: web.Request, conversation_id: str) -> AppConversation:
    """Get a conversation.

    With the present state of its sandbox and its agent.
    """
    view = await request.app[CONVERSATIONS].get(user_of(request), conversation_id)
    return from_view(view, links_of(request))


@ROUTES.add("PATCH", "/{conversation_id}", example={"title": "Fix the login page"})
async def patch_app_conversation(
    request: web.Request, conversation_id: str, body: PatchBody
) -> AppConversation:
    """Change a conversation.

    Only the fields in the request are changed; null clears a field. The response is the changed
    conversation.
    """
    patch = copy_to(ConversationPatch, body)
    with _not_found_as("unknown_app_conversation"):
        view = await request.app[CONVERSATIONS].update(user_of(request), conversation_id, patch)
    return from_view(view, links_of(request))


@ROUTES.add("DELETE", "/{conversation_id}", errors=(BadRequest,))
async def delete_app_conversation(request: web.Request) -> Success:
    """Delete a conversation, and its sandbox if no other conversation uses it.

    Its events, start tasks and sub-conversations are deleted, too. The sandbox and its files are
    removed in the background if no other conversation uses the sandbox. This cannot be undone.
    """
    conversation_id = parse_uuid(request.match_info["conversation_id"])
    if conversation_id is None:
        raise BadRequest("Invalid conversation ID format")
    with _not_found_as("Conversation not found"):
        await request.app[CONVERSATIONS].delete(user_of(request), conversation_id)
    return SUCCESS


@ROUTES.add(
    "POST",
    "/{conversation_id}/send-message",
    effect=Effect(kind=Queued, answer=_answer_queued),
    errors=(*OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"content": [{"type": "text", "text": "Add a test for it"}]},
)
async def post_send_message(
    request: web.Request, conversation_id: str, body: SendMessageBody
) -> SendMessageView:
    """Send a message to a conversation.

    Refused (409) while the sandbox is starting or was paused by the user: resume it first. A
    sandbox that an idle rule paused is resumed, and the message is delivered then. To queue a
    message in any state, use `pending-messages`.
    """
    message = to_nonempty_message(body.role, body.content, loc=("body",))
    status = await request.app[PENDING].send(
        user_of(request), conversation_id, message, run=body.run
    )
    return SendMessageView(sandbox_status=status)


async def _follow(request: web.Request, task_id: str) -> AsyncGenerator[StartTaskView]:
    user_id = user_of(request)
    async for task in request.app[CONVERSATIONS].starts.follow(user_id, task_id):
        yield from_start_task(task, links_of(request))


@contextmanager
def _not_found_as(message: str) -> Iterator[None]:
    """Replace the message of a NotFound by the text that clients of this operation expect."""
    try:
        yield
    except NotFound as exc:
        raise NotFound(message, detail=exc.message) from exc
