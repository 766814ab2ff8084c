"""App conversations: their types on the wire, their mapping to and from the core, and handlers."""

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
    LongText,
    StartBody,
    StartTaskView,
    from_start_task,
    to_order,
)
from agentsvc.http.v1.types_messages import SAYS_SOMETHING, RawPart, to_said
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
    """The agent profile a conversation was started with."""

    agent_profile_id: str
    """Id of the saved agent"""
    revision: int
    """Number of its change at that time"""


class AppConversation(msgspec.Struct, frozen=True, kw_only=True):
    """AppConversation: a conversation with what is known of its sandbox.

    `queued_messages` is how many messages wait until its agent can take them; with one that sets the
    agent to work, `execution_status` is `running` from then on, unless it waits for confirmation.
    """

    id: str
    """Id of the conversation, 32 hex digits"""
    created_by_user_id: str | None
    """Always null: one sees only conversations of one's own"""
    sandbox_id: str
    """Id of the sandbox it runs in; empty before it has one"""
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    title: str | None
    """Title; `Conversation` and five digits until it has a better one. Null if it was cleared"""
    trigger: Trigger | None
    pr_number: list[int]
    llm_model: str | None
    """Provider and name of the model it works with; null until that is known"""
    agent_kind: str
    """Kind of the agent: `openhands`, or `acp` for another one"""
    metrics: Metrics | None
    """What it has cost so far; null before the agent has asked its model"""
    parent_conversation_id: str | None
    """Conversation this one is a part of, 32 hex digits; null if none"""
    sub_conversation_ids: list[str]
    """Conversations that are parts of this one, 32 hex digits each"""
    public: bool | None
    """What `public` of the start or of a change said; nobody else sees it for that unless the
    operator has set `sharing.public_flag`. Null if it was not said"""
    tags: dict[str, str]
    """Short texts by name, such as where its workspace comes from"""
    labels: list[str]
    """Labels that you gave it; front ends show `pinned` on top and leave out `archived`"""
    created_at: Time
    updated_at: Time
    sandbox_status: SandboxStatus
    """What its sandbox does; `MISSING` if there is none any more"""
    execution_status: ExecutionStatus | None
    """What its agent does; null while the sandbox does not run"""
    queued_messages: int
    """How many messages wait until its agent can take them"""
    conversation_url: str | None
    """Where the agent server in the sandbox has the conversation, through this server; null while
    the sandbox does not run"""
    session_api_key: ShownSecret | None
    """Key for calls to that URL, sent as `X-Session-API-Key`. A resume may bring a new one; null
    while the sandbox does not run"""
    acp_server: str | None
    """Which other agent it has, where `agent_kind` is `acp`; else null"""
    launched_agent_profile: LaunchedAgentProfile | None
    """The saved agent it was started with; null if none"""


class ConversationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of conversations."""

    title_contains: str | None = msgspec.field(name="title__contains", default=None)
    """Only conversations with this in their title, upper or lower case; left out: all"""
    created_at_gte: Time | None = msgspec.field(name="created_at__gte", default=None)
    created_at_lt: Time | None = msgspec.field(name="created_at__lt", default=None)
    updated_at_gte: Time | None = msgspec.field(name="updated_at__gte", default=None)
    updated_at_lt: Time | None = msgspec.field(name="updated_at__lt", default=None)
    sandbox_id: str | None = msgspec.field(name="sandbox_id__eq", default=None)
    """Only conversations in this sandbox; left out: in all"""


class ConversationSearch(ConversationFilter, frozen=True, kw_only=True):
    """The query of the search of conversations."""

    include_sub_conversations: bool = False
    """Whether conversations that are parts of another one are listed, too"""
    sort_order: ConversationSort = ConversationSort.CREATED_AT_DESC
    """What the list is sorted by; `_DESC` is the latest, or the last title, first"""
    page_id: str | None = None
    limit: Limit = PAGE_MAX


class ConversationIds(ConversationSearch, frozen=True, kw_only=True):
    """The query of the batch get; without ids the operation searches."""

    ids: Annotated[list[Annotated[str, stated(format="uuid")]], stated(maxItems=IDS_MAX)] = []
    """Ids of at most 99 conversations, with or without dashes. Each is answered in its place, null
    for one that is unknown; left out: a page of all"""


class PatchBody(
    msgspec.Struct, frozen=True, kw_only=True, rename={**GIT_NAMES, "is_public": "public"}
):
    """What to change of a conversation; what is not sent stays, null clears."""

    title: LongText | UnsetType | None = UNSET
    """New title; null or left out as for all fields of a change: cleared, or unchanged"""
    is_public: bool | UnsetType | None = UNSET
    """New value, which is kept and shown only, unless the operator has set `sharing.public_flag`: true
    shares the conversation then. Null: cleared, left out: unchanged"""
    repository: Repository | UnsetType | None = UNSET
    """Repository to show, as `owner/name`; nothing is cloned. Null: cleared, left out: unchanged"""
    branch: Branch | UnsetType | None = UNSET
    """Branch to show; nothing is checked out. Null: cleared, left out: unchanged"""
    provider: Provider | UnsetType | None = UNSET
    """Git hosting service to show; null: cleared, left out: unchanged"""
    labels: Annotated[list[Label], msgspec.Meta(max_length=LABELS_MAX)] | UnsetType | None = UNSET
    """All labels it has from now on, at most 20; null: none, left out: unchanged"""


class SendMessageBody(msgspec.Struct, frozen=True, kw_only=True):
    """A message to a conversation that has been started."""

    role: Literal["user"] = "user"
    """Who speaks; always the user"""
    content: Annotated[list[RawPart], msgspec.Meta(min_length=1, max_length=1000), SAYS_SOMETHING]
    """The parts of the message, 1 to 1000; one is an image, or a text that is not empty"""
    run: bool = True
    """Whether the agent starts to work on it; false: when it is next told to"""


class SendMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a message that was sent."""

    success: bool = True
    """Always true"""
    sandbox_status: SandboxStatus
    """What the sandbox did when the message was sent"""
    message: str | None = None
    """Always null"""


def to_ids(texts: Sequence[str]) -> list[str]:
    """Return the ids of the batch get; raises BadRequest for too many or a bad one."""
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
    """Return the filters in the core's words; raises InvalidRequest."""
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
    """Return a conversation as clients see it; most are seen many times before they change."""
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


class _Begun(msgspec.Struct, frozen=True, kw_only=True):
    """What tells which start task a stream is about."""

    id: str


_BEGUN = msgspec.json.Decoder(list[_Begun])

ROUTES: Final = Routes(PREFIX)


def answer_task(request: web.Request, task: StartTask) -> web.Response:
    """Answer with a start task."""
    return json_response(from_start_task(task, links_of(request)))


def _answer_tasks(request: web.Request, task: StartTask) -> web.Response:
    return json_response([from_start_task(task, links_of(request))])


async def _go_on_streaming(request: web.Request, begun: bytes) -> web.StreamResponse:
    [task] = _BEGUN.decode(begun)
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
    """Start a conversation; the answer is the task that starts it.

    The answer is a start task in the status `WORKING`, never the conversation: the start goes on in
    the background. Ask for the task until its status is `READY`, when `app_conversation_id` is
    there, or `ERROR`, when `detail` says why.
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
    """Get conversations by id, or a page of them without ids.

    With `ids` a list of as many items, in their order, null for each that is unknown. Without `ids`
    a page, as the search answers it.
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
    goes_on=_go_on_streaming,
)
async def post_stream_start(request: web.Request, body: StartBody) -> web.StreamResponse:
    """Start a conversation and follow the task.

    The answer is a JSON array that grows: the task as it is at once, and again whenever its status
    changes, to the end of the start. Each is on a line of its own.
    """
    task = await request.app[CONVERSATIONS].starts.start(user_of(request), to_order(body))
    return await stream_array(request, _follow(request, task.id))


@ROUTES.add("GET", "/search", example={"title__contains": "fix", "limit": 10})
async def search_app_conversations(
    request: web.Request, query: ConversationSearch
) -> Page[AppConversation]:
    """Search conversations.

    Newest first unless `sort_order` says otherwise. Filters are all to be met. One sees only
    conversations of one's own.
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

    With the filters of the search; conversations that are parts of another one count, too.
    """
    wanted = to_query(query, include_children=True)
    return await request.app[CONVERSATIONS].count(user_of(request), wanted)


@ROUTES.add("GET", "/{conversation_id}")
async def get_app_conversation(request: web.Request, conversation_id: str) -> AppConversation:
    """Get one conversation.

    As it is now, with what its sandbox and its agent do.
    """
    view = await request.app[CONVERSATIONS].get(user_of(request), conversation_id)
    return from_view(view, links_of(request))


@ROUTES.add("PATCH", "/{conversation_id}", example={"title": "Fix the login page"})
async def patch_app_conversation(
    request: web.Request, conversation_id: str, body: PatchBody
) -> AppConversation:
    """Change a conversation.

    Only what is sent is changed; null clears a field. The answer is the conversation as it is now.
    """
    patch = copy_to(ConversationPatch, body)
    with _not_found_as("unknown_app_conversation"):
        view = await request.app[CONVERSATIONS].update(user_of(request), conversation_id, patch)
    return from_view(view, links_of(request))


@ROUTES.add("DELETE", "/{conversation_id}", errors=(BadRequest,))
async def delete_app_conversation(request: web.Request) -> Success:
    """Delete a conversation, with its sandbox if no other lives there.

    Its events, start tasks and parts are deleted, too. The sandbox goes in the background, with its
    files, if no other conversation lives there. It cannot be undone.
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

    Refused (409) while the sandbox is paused or starts: resume it first. One that was paused
    because nobody used it is resumed, and gets the message then. To queue a message in any case,
    use `pending-messages`.
    """
    message = to_said(body.role, body.content, loc=("body",))
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
    """Say it in the words that clients of this operation know."""
    try:
        yield
    except NotFound as exc:
        raise NotFound(message, detail=exc.message) from exc
