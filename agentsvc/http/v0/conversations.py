"""Conversations of V0: wire structs, their conversion to and from the domain, and handlers."""

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import (
    BadRequest,
    InvalidRequest,
    NotFound,
    Problems,
    ShownSecret,
    copy_to,
    matching,
    parse_uuid,
    to_stored,
    view_of,
)
from agentsvc.conversations import (
    ConversationPatch,
    ConversationQuery,
    Conversations,
    ConversationView,
    Generation,
    StartTask,
    default_title,
    first_message,
)
from agentsvc.domain import (
    ExecutionStatus,
    McpListsBody,
    Message,
    Provider,
    StartOrder,
    SuggestedTask,
    TaskType,
    Trigger,
    message_of,
    to_mcp_config,
)
from agentsvc.domain import repositories as git
from agentsvc.http.keys import CONVERSATIONS, user_of
from agentsvc.http.routes import OF_STARTS, Routes, effect_of, shown_as
from agentsvc.http.urls import Links, links_of
from agentsvc.http.v0.replay import read_recording
from agentsvc.http.v0.socket_opener import FOLLOWERS
from agentsvc.http.wire import PAGE_MAX, ImageUrl, Int64, Time, read_json
from agentsvc.sandboxes import SandboxStatus

TITLE_MAX: Final = 200

type Name = Annotated[str, Meta(max_length=1024)]
type ImageUrls = Annotated[list[ImageUrl], Meta(max_length=100)]


class ConversationStatus(StrEnum):
    """Status of a conversation in V0."""

    STARTING = "STARTING"
    """The conversation is being started or resumed"""
    RUNNING = "RUNNING"
    """The conversation is ready for use"""
    STOPPED = "STOPPED"
    """The sandbox is paused or stopped; `start` resumes it"""
    ARCHIVED = "ARCHIVED"
    """The sandbox does not exist any more; the history can still be read"""
    ERROR = "ERROR"
    """The start or the sandbox has failed"""


type StartedStatus = Literal["STARTING", "RUNNING", "STOPPED"]
type RuntimeStatus = Literal["STATUS$READY", "STATUS$ERROR"]


class SuggestedTaskBody(msgspec.Struct, frozen=True, kw_only=True):
    """A suggested task from a git provider."""

    git_provider: Provider
    """Git provider of the task"""
    task_type: TaskType
    """Type of the task"""
    repo: Name
    """Repository of the task, as `owner/name`"""
    issue_number: Int64
    """Number of the issue or pull request"""
    title: Annotated[str, Meta(max_length=4096)]
    """Title of the issue or pull request, at most 4096 characters"""


class CreateMicroagentBody(msgspec.Struct, frozen=True, kw_only=True):
    """The repository for which to write a skill."""

    repo: Name
    """Repository, as `owner/name`; it is cloned unless `repository` names another one"""
    git_provider: Provider | None = None
    """Git provider of the repository; null: the first one at which it is found with a token of the
    user"""
    title: str | None = None
    """Accepted without effect; null: not set"""


class StartBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """InitSessionRequest: request to start a conversation; all fields are optional."""

    repository: git.SentRepository | None = None
    """Repository to clone into the workspace: `owner/name`, or a URL; null or empty: an empty
    workspace"""
    git_provider: Provider | None = None
    """Git provider of the repository; null: the first one at which it is found with a token of the
    user"""
    selected_branch: git.SentBranch | None = None
    """Branch to check out; null or empty: the default branch"""
    initial_user_msg: str | None = None
    """First message of the user, which starts the agent; null: the agent waits for a message. It
    may be empty only with images, `suggested_task`, `create_microagent` or `replay_json`"""
    image_urls: ImageUrls | None = None
    """Images of the first message, as http(s) or data URLs; null: none"""
    replay_json: str | None = None
    """Recorded trajectory, as a JSON string, which the agent replays before its model continues;
    null or empty: none"""
    suggested_task: SuggestedTaskBody | None = None
    """Suggested task from a git provider; it becomes the first message instead of
    `initial_user_msg`. Null: none"""
    create_microagent: CreateMicroagentBody | None = None
    """Repository for which the agent writes a skill; null: none"""
    conversation_instructions: str | None = None
    """Text appended to the agent's system prompt; null: none"""
    mcp_config: McpListsBody | None = None
    """Tool servers of this conversation instead of those of the settings; null: those of the
    settings"""
    conversation_id: (
        Annotated[
            str, matching(r"\A[A-Za-z0-9_-]{1,100}\Z", "of 1 to 100 letters, digits, `_` and `-`")
        ]
        | UnsetType
    ) = UNSET
    """Name for the conversation: 1 to 100 letters, digits, `_` and `-`; omitted: a random id. If a
    conversation has the name already, nothing is started and the response has its status"""


class StartAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """ConversationResponse: status of a conversation after a start or stop."""

    status: str = "ok"
    """Always `ok`"""
    conversation_id: str
    """Id of the conversation, or its name from the request"""
    message: str | None = None
    """Result of a stop, or why the first message was not accepted, for people; otherwise null"""
    conversation_status: Annotated[ConversationStatus, shown_as(StartedStatus)]
    """Status of the conversation; a failed or missing one is `STOPPED`. A stop returns the status
    before the stop"""


class TitleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """UpdateConversationRequest: a new title."""

    title: Annotated[str, Meta(min_length=1, max_length=TITLE_MAX)]
    """New title, 1 to 200 characters"""


class ConversationInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in V0."""

    conversation_id: str
    """Id of the conversation, 32 hex digits, or its name from the start request"""
    title: str
    """Title; `Conversation` and five hex digits until a title is generated or set"""
    last_updated_at: Time | None
    """Time of the last change, in UTC; never null"""
    status: ConversationStatus
    """Status of the conversation"""
    runtime_status: RuntimeStatus | None
    """Whether its agent has failed, for front ends; null unless the conversation is running"""
    selected_repository: str | None
    selected_branch: str | None
    git_provider: Provider | None
    trigger: Trigger | None
    num_connections: int = 0
    """Number of event socket connections to the conversation"""
    url: str | None
    """Base URL of the operations of the conversation; null unless it is running"""
    session_api_key: ShownSecret | None
    """Key for that URL, for a conversation of V1; null otherwise"""
    created_at: Time
    pr_number: list[int]
    conversation_version: Literal["V0", "V1"]
    """Version of the API that started the conversation"""
    sub_conversation_ids: list[str]
    """Ids of the sub-conversations, 32 hex digits each"""


class ConversationPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of conversations."""

    results: list[ConversationInfo]
    """The conversations, newest first"""
    next_page_id: str | None


class ConversationSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Query of the list of conversations; a limit above 100 is reduced to 100."""

    page_id: str | None = None
    limit: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 20
    """Maximum number of conversations on the page; more than 100 is reduced to 100"""
    selected_repository: str | None = None
    """Only conversations with this repository; omitted: all"""
    conversation_trigger: Trigger | None = None
    """Only conversations with this trigger; omitted: all"""
    include_sub_conversations: bool = False
    """Whether to list sub-conversations, too"""


_STATUSES: Final = {
    SandboxStatus.STARTING: ConversationStatus.STARTING,
    SandboxStatus.RUNNING: ConversationStatus.RUNNING,
    SandboxStatus.PAUSED: ConversationStatus.STOPPED,
    SandboxStatus.ERROR: ConversationStatus.ERROR,
    SandboxStatus.MISSING: ConversationStatus.ARCHIVED,
}
_FAILED: Final = frozenset({ExecutionStatus.ERROR, ExecutionStatus.STUCK})


def to_order(body: StartBody) -> StartOrder:
    """Convert the request to a start order; raises InvalidRequest or BadRequest."""
    replay = read_recording(body.replay_json) if body.replay_json else ()
    microagent, task = body.create_microagent, body.suggested_task
    repository = body.repository or (microagent.repo if microagent else None) or None
    provider = body.git_provider or (microagent.git_provider if microagent else None)
    servers = None
    problems = Problems()
    with problems.noted():
        _check_source(repository, body.selected_branch or None, provider)
    with problems.noted():
        servers = to_mcp_config(body.mcp_config)
    problems.refuse()
    name = None if body.conversation_id is UNSET else body.conversation_id
    known = parse_uuid(name) if name else None
    return StartOrder(
        conversation_id=known,
        alias=None if known else name,
        initial_message=_first_message(body),
        system_message_suffix=body.conversation_instructions or None,
        repository=repository,
        branch=body.selected_branch or None,
        provider=provider,
        suggested_task=copy_to(SuggestedTask, task, provider=task.git_provider) if task else None,
        trigger=_trigger(body),
        mcp_config=servers,
        settings_required=True,
        replay=replay,
    )


def to_query(wanted: ConversationSearch) -> ConversationQuery:
    """Convert the filters to the query of the domain."""
    return ConversationQuery(
        repository=wanted.selected_repository,
        trigger=wanted.conversation_trigger,
        include_children=wanted.include_sub_conversations,
        include_starting=True,
    )


def shown_id(view: ConversationView) -> str:
    """Return the id of a conversation in V0: the name that the client gave it, otherwise its id."""
    return view.conversation.alias or view.conversation.id


def from_view(
    view: ConversationView, links: Links, followers: Mapping[str, int]
) -> ConversationInfo:
    """Convert a conversation to its wire struct."""
    conversation, status = view.conversation, status_of(view)
    is_ours = conversation.generation is Generation.V0
    is_running = status is ConversationStatus.RUNNING
    health: RuntimeStatus = "STATUS$ERROR" if view.execution_status in _FAILED else "STATUS$READY"
    url = links.conversation(view.sandbox, conversation.id)
    if is_ours:
        url = f"{links.prefix}/api/conversations/{shown_id(view)}" if is_running else None
    # Clients send this key to that URL; V0 operations of this server accept only user keys.
    key = None if is_ours else view.session_api_key
    return view_of(
        ConversationInfo,
        conversation,
        conversation_id=shown_id(view),
        title=conversation.title or default_title(conversation.id),
        last_updated_at=to_stored(conversation.updated_at),
        status=status,
        runtime_status=health if is_running else None,
        num_connections=followers.get(conversation.id, 0),
        url=url,
        session_api_key=links.shown(key),
        pr_number=list(conversation.pr_number),
        conversation_version="V0" if is_ours else "V1",
        sub_conversation_ids=list(conversation.sub_ids),
    )


def answer_existing(view: ConversationView, *, is_ignored: bool = False) -> StartAnswer:
    """Return the response to a start request for an existing conversation; nothing is started.

    `is_ignored` is whether the request had a first message that was not accepted. Clients know only
    three statuses here, so a failed or missing conversation is `STOPPED`.
    """
    status = status_of(view)
    if status not in (ConversationStatus.STARTING, ConversationStatus.RUNNING):
        status = ConversationStatus.STOPPED
    name = shown_id(view)
    message = (
        "The conversation exists, and the message was not taken. Send it with"
        f" POST /api/conversations/{name}/message"
    )
    return StartAnswer(
        conversation_id=name, message=message if is_ignored else None, conversation_status=status
    )


def status_of(view: ConversationView) -> ConversationStatus:
    """Return the V0 status of a conversation."""
    if view.conversation.start_failed:
        return ConversationStatus.ERROR
    status = _STATUSES[view.sandbox_status]
    is_running = status is ConversationStatus.RUNNING
    return ConversationStatus.STARTING if is_running and not view.conversation.is_ready else status


def _first_message(body: StartBody) -> Message | None:
    if body.suggested_task is not None:
        # The suggested task becomes the first message, instead of the message of the request.
        return None
    text = body.initial_user_msg
    message = message_of(text or "", body.image_urls or ())
    says_why = body.create_microagent or body.replay_json
    if message.is_empty and text is not None and not says_why:
        raise InvalidRequest(
            "The message is empty: leave it out to start a conversation that waits for one",
            loc=("body", "initial_user_msg"),
            kind="too_short",
        )
    return None if message.is_empty else message


def _trigger(body: StartBody) -> Trigger:
    if body.suggested_task is not None:
        return Trigger.SUGGESTED_TASK
    return Trigger.MICROAGENT_MANAGEMENT if body.create_microagent is not None else Trigger.GUI


def _check_source(repository: str | None, branch: str | None, provider: Provider | None) -> None:
    """Raise InvalidRequest, with V0's field names, for a repository or branch git would reject."""
    loc = ("body", "repository")
    problems = Problems()
    with problems.noted():
        if repository is not None and "://" in repository:
            git.locate(repository, provider, loc=loc)
        elif repository is not None:
            git.check_repository(repository, provider, loc=loc)
    with problems.noted():
        if branch is not None:
            git.check_branch(branch, loc=("body", "selected_branch"))
    problems.refuse()


_ID_MAX = 100

ROUTES: Final = Routes("/api/conversations")


def _from_task(task: StartTask) -> StartAnswer:
    return StartAnswer(
        conversation_id=task.request.alias or task.conversation_id,
        conversation_status=ConversationStatus.STARTING,
    )


@ROUTES.add(
    "POST",
    "",
    effect=effect_of(StartTask, _from_task),
    errors=OF_STARTS,
    example={"initial_user_msg": "Fix the login page"},
)
async def post_conversation(request: web.Request, body: StartBody) -> StartAnswer:
    """Start a conversation.

    The response comes at once and the start continues in the background; the event socket and the
    `status` of the conversation report its progress. If a conversation with the id exists, nothing
    is started and the response has its status.
    """
    # A recording may be long, so it is parsed in a thread.
    order = await asyncio.to_thread(to_order, body) if body.replay_json else to_order(body)
    known = await find_view(request, order.alias or order.conversation_id or "")
    if known:
        return await _answer_existing(request, order, known)
    starts, user_id = request.app[CONVERSATIONS].starts, user_of(request)
    return _from_task(await starts.start(user_id, order, generation=Generation.V0))


@ROUTES.add("GET", "", example={"limit": 10})
async def get_conversations(request: web.Request, query: ConversationSearch) -> ConversationPage:
    """List your conversations.

    Newest first, including those of V1.
    """
    views, next_page_id = await request.app[CONVERSATIONS].search(
        user_of(request), to_query(query), page_id=query.page_id, limit=min(query.limit, PAGE_MAX)
    )
    links, followers = links_of(request), request.app[FOLLOWERS]
    results = [from_view(view, links, followers) for view in views]
    return ConversationPage(results=results, next_page_id=next_page_id)


@ROUTES.add("GET", "/{conversation_id}", errors=(BadRequest,))
async def get_conversation(request: web.Request) -> ConversationInfo | None:
    """Get a conversation.

    The response is null for an unknown conversation, as published clients expect.
    """
    view = await find_view(request, conversation_id_of(request))
    followers = request.app[FOLLOWERS]
    return from_view(view, links_of(request), followers) if view else None


@ROUTES.add(
    "PATCH",
    "/{conversation_id}",
    body=TitleBody,
    errors=(BadRequest,),
    example={"title": "Fix the login page"},
)
async def patch_conversation(request: web.Request) -> bool:
    """Set the title of a conversation.

    The title is also sent to its event sockets.
    """
    name = conversation_id_of(request)
    body = await read_json(request, TitleBody)
    view = await find_view(request, name)
    if view is None:
        raise NotFound("Conversation not found", extra=_UNKNOWN)
    await request.app[CONVERSATIONS].update(
        user_of(request), view.conversation.id, ConversationPatch(title=body.title)
    )
    return True


@ROUTES.add("DELETE", "/{conversation_id}", errors=(BadRequest,))
async def delete_conversation(request: web.Request) -> bool:
    """Delete a conversation.

    Its history is deleted, and its sandbox with all files if no other conversation uses it. The
    response is false for an unknown conversation. This cannot be undone.
    """
    view = await find_view(request, conversation_id_of(request))
    if view is None:
        return False
    await request.app[CONVERSATIONS].delete(user_of(request), view.conversation.id)
    return True


def conversation_id_of(request: web.Request) -> str:
    """Return the conversation id in the path; raises BadRequest if it is not a valid id."""
    name = request.match_info["conversation_id"]
    if len(name) > _ID_MAX:
        raise BadRequest("Conversation ID is too long")
    if not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        raise BadRequest("Conversation ID has characters that are not allowed")
    return name


async def find_view(request: web.Request, name: str) -> ConversationView | None:
    """Return the caller's conversation with this id or name, or None."""
    return await find_named(request.app[CONVERSATIONS], user_of(request), name)


async def find_named(
    conversations: Conversations, user_id: str, name: str
) -> ConversationView | None:
    """Return the user's conversation with this id or name, or None."""
    conversation_id = await conversations.resolve(user_id, name)
    if conversation_id is None:
        return None
    [view] = await conversations.find_many(user_id, [conversation_id], include_starting=True)
    return view


async def get_view(request: web.Request) -> ConversationView:
    """Return the conversation in the path; raises NotFound."""
    name = conversation_id_of(request)
    view = await find_view(request, name)
    if view is None:
        raise NotFound(f"Conversation {name} not found")
    return view


async def _answer_existing(
    request: web.Request, order: StartOrder, view: ConversationView
) -> StartAnswer:
    """Return the response for an existing conversation.

    A message equal to the first one of its start task counts as accepted: the request is repeated.
    """
    tasks, _ = await request.app[CONVERSATIONS].starts.search(
        user_of(request), conversation_id=view.conversation.id, limit=1
    )
    taken = [first_message(task.request) for task in tasks]
    message = first_message(order)
    return answer_existing(view, is_ignored=message is not None and message not in taken)


_UNKNOWN = {
    "status": "error",
    "message": "Conversation not found",
    "msg_id": "CONVERSATION$NOT_FOUND",
}
