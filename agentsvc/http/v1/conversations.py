"""Handlers of app conversations."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, NotFound, QuotaExceeded, TooManyRequests, parse_uuid
from agentsvc.conversations import Queued, StartTask
from agentsvc.http.keys import CONVERSATIONS, PENDING, PRINCIPAL
from agentsvc.http.routes import EXAMPLE_ID, OF_AGENTS, OF_STARTS, Effect, Example, Routes
from agentsvc.http.urls import links_of
from agentsvc.http.v1.types_conversations import (
    AppConversation,
    ConversationFilter,
    ConversationIds,
    ConversationSearch,
    PatchBody,
    SendMessageBody,
    SendMessageView,
    from_view,
    from_views,
    to_ids,
    to_patch,
    to_query,
)
from agentsvc.http.v1.types_messages import to_said
from agentsvc.http.v1.types_start import StartBody, StartTaskView, from_start_task, to_order
from agentsvc.http.wire import (
    SUCCESS,
    Page,
    Success,
    json_response,
    path_id,
    read_query,
    stream_array,
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
async def post_app_conversation(request: web.Request, body: StartBody) -> web.Response:
    """Start a conversation; the answer is the task that starts it.

    The answer is a start task in the status `WORKING`, never the conversation: the start goes on in
    the background. Ask for the task until its status is `READY`, when `app_conversation_id` is
    there, or `ERROR`, when `detail` says why.
    """
    order = to_order(body)
    task = await request.app[CONVERSATIONS].start(request[PRINCIPAL].user_id, order)
    return answer_task(request, task)


@ROUTES.add(
    "GET",
    "",
    list[AppConversation | None] | Page[AppConversation],
    errors=(BadRequest,),
    example={"ids": [EXAMPLE_ID]},
)
async def get_app_conversations(request: web.Request, query: ConversationIds) -> web.Response:
    """Get conversations by id, or a page of them without ids.

    With `ids` a list of as many items, in their order, null for each that is unknown. Without `ids`
    a page, as the search answers it.
    """
    ids = to_ids(query.ids)
    if not ids:
        return await search_app_conversations(request)
    views = await request.app[CONVERSATIONS].find_many(request[PRINCIPAL].user_id, ids)
    return json_response(from_views(views, links_of(request)))


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
    order = to_order(body)
    task = await request.app[CONVERSATIONS].start(request[PRINCIPAL].user_id, order)
    return await stream_array(request, _follow(request, task.id))


@ROUTES.add(
    "GET",
    "/search",
    Page[AppConversation],
    query=ConversationSearch,
    example={"title__contains": "fix", "limit": 10},
)
async def search_app_conversations(request: web.Request) -> web.Response:
    """Search conversations.

    Newest first unless `sort_order` says otherwise. Filters are all to be met. One sees only
    conversations of one's own.
    """
    wanted = read_query(request, ConversationSearch)
    query = to_query(
        wanted, include_children=wanted.include_sub_conversations, sort=wanted.sort_order
    )
    views, next_page_id = await request.app[CONVERSATIONS].search(
        request[PRINCIPAL].user_id, query, page_id=wanted.page_id, limit=wanted.limit
    )
    return json_response(
        Page(items=from_views(views, links_of(request)), next_page_id=next_page_id)
    )


@ROUTES.add("GET", "/count", query=ConversationFilter)
async def count_app_conversations(request: web.Request) -> int:
    """Count conversations.

    With the filters of the search; conversations that are parts of another one count, too.
    """
    query = to_query(read_query(request, ConversationFilter), include_children=True)
    return await request.app[CONVERSATIONS].count(request[PRINCIPAL].user_id, query)


@ROUTES.add("GET", "/{conversation_id}")
async def get_app_conversation(request: web.Request) -> AppConversation:
    """Get one conversation.

    As it is now, with what its sandbox and its agent do.
    """
    conversation_id = path_id(request, "conversation_id")
    view = await request.app[CONVERSATIONS].get(request[PRINCIPAL].user_id, conversation_id)
    return from_view(view, links_of(request))


@ROUTES.add("PATCH", "/{conversation_id}", example={"title": "Fix the login page"})
async def patch_app_conversation(request: web.Request, body: PatchBody) -> AppConversation:
    """Change a conversation.

    Only what is sent is changed; null clears a field. The answer is the conversation as it is now.
    """
    conversation_id = path_id(request, "conversation_id")
    patch = to_patch(body)
    with _not_found_as("unknown_app_conversation"):
        view = await request.app[CONVERSATIONS].update(
            request[PRINCIPAL].user_id, conversation_id, patch
        )
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
        await request.app[CONVERSATIONS].delete(request[PRINCIPAL].user_id, conversation_id)
    return SUCCESS


@ROUTES.add(
    "POST",
    "/{conversation_id}/send-message",
    SendMessageView,
    effect=Effect(kind=Queued, answer=_answer_queued),
    errors=(*OF_AGENTS, QuotaExceeded, TooManyRequests),
    example={"content": [{"type": "text", "text": "Add a test for it"}]},
)
async def post_send_message(request: web.Request, body: SendMessageBody) -> web.Response:
    """Send a message to a conversation.

    Refused (409) while the sandbox is paused or starts: resume it first. One that was paused
    because nobody used it is resumed, and gets the message then. To queue a message in any case,
    use `pending-messages`.
    """
    conversation_id = path_id(request, "conversation_id")
    message = to_said(body.role, body.content, loc=("body",))
    status = await request.app[PENDING].send(
        request[PRINCIPAL].user_id, conversation_id, message, run=body.run
    )
    return json_response(SendMessageView(sandbox_status=status))


async def _follow(request: web.Request, task_id: str) -> AsyncGenerator[StartTaskView]:
    user_id = request[PRINCIPAL].user_id
    async for task in request.app[CONVERSATIONS].starts.follow(user_id, task_id):
        yield from_start_task(task, links_of(request))


@contextmanager
def _not_found_as(message: str) -> Iterator[None]:
    """Say it in the words that clients of this operation know."""
    try:
        yield
    except NotFound as exc:
        raise NotFound(message, detail=exc.message) from exc
