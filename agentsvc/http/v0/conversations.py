"""Handlers of the older generation for conversations."""

from typing import Final

from aiohttp import web

from agentsvc.base import BadRequest, NotFound
from agentsvc.conversations import (
    ConversationPatch,
    ConversationView,
    Generation,
    StartTask,
    first_message,
)
from agentsvc.domain import StartOrder
from agentsvc.http.keys import CONVERSATIONS, PRINCIPAL
from agentsvc.http.routes import OF_STARTS, Effect, Routes
from agentsvc.http.urls import links_of
from agentsvc.http.v0.types_conversations import (
    ConversationInfo,
    ConversationPage,
    ConversationSearch,
    ConversationStatus,
    StartAnswer,
    StartBody,
    TitleBody,
    from_known,
    from_view,
    to_limit,
    to_order,
    to_query,
)
from agentsvc.http.v0.types_socket import FOLLOWERS
from agentsvc.http.wire import json_response, read_json

_ID_MAX = 100

ROUTES: Final = Routes("/api/conversations")


def _answer_task(_request: web.Request, task: StartTask) -> web.Response:
    return json_response(_from_task(task))


@ROUTES.add(
    "POST",
    "",
    StartAnswer,
    effect=Effect(kind=StartTask, answer=_answer_task),
    errors=OF_STARTS,
    example={"initial_user_msg": "Fix the login page"},
)
async def post_conversation(request: web.Request, body: StartBody) -> web.Response:
    """Start a conversation.

    The answer comes at once, and the start goes on in the background: its progress is told by the
    event socket, and by `status` of the conversation. With the id of a conversation there is,
    nothing is started, and the answer says how it is.
    """
    order = to_order(body)
    known = await find_view(request, order.alias or order.conversation_id or "")
    answer = await _known(request, order, known) if known else await _start(request, order)
    return json_response(answer)


@ROUTES.add("GET", "", example={"limit": 10})
async def get_conversations(request: web.Request, query: ConversationSearch) -> ConversationPage:
    """List conversations.

    Newest first, those of V1 among them. One sees only conversations of one's own.
    """
    views, next_page_id = await request.app[CONVERSATIONS].search(
        request[PRINCIPAL].user_id,
        to_query(query),
        page_id=query.page_id,
        limit=to_limit(query),
    )
    links, followers = links_of(request), request.app[FOLLOWERS]
    results = [from_view(view, links, followers) for view in views]
    return ConversationPage(results=results, next_page_id=next_page_id)


@ROUTES.add("GET", "/{conversation_id}", errors=(BadRequest,))
async def get_conversation(request: web.Request) -> ConversationInfo | None:
    """Return a conversation.

    Null for an unknown one, which published clients expect.
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
    """Give a conversation a title.

    Clients on the event socket are told the title.
    """
    name = conversation_id_of(request)
    body = await read_json(request, TitleBody)
    view = await find_view(request, name)
    if view is None:
        raise NotFound("Conversation not found", extra=_UNKNOWN)
    await request.app[CONVERSATIONS].update(
        request[PRINCIPAL].user_id, view.conversation.id, ConversationPatch(title=body.title)
    )
    return True


@ROUTES.add("DELETE", "/{conversation_id}", errors=(BadRequest,))
async def delete_conversation(request: web.Request) -> bool:
    """Delete a conversation.

    Its history goes, and its sandbox with all files if no other conversation lives there. False for
    an unknown one. It cannot be undone.
    """
    view = await find_view(request, conversation_id_of(request))
    if view is None:
        return False
    await request.app[CONVERSATIONS].delete(request[PRINCIPAL].user_id, view.conversation.id)
    return True


def conversation_id_of(request: web.Request) -> str:
    """Return the conversation id of the path; raises BadRequest for what can be none."""
    name = request.match_info["conversation_id"]
    if len(name) > _ID_MAX:
        raise BadRequest("Conversation ID is too long")
    if not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        raise BadRequest("Conversation ID has characters that are not allowed")
    return name


async def find_view(request: web.Request, name: str) -> ConversationView | None:
    """Return the caller's conversation of an id or a name of their own, or None."""
    conversations, user_id = request.app[CONVERSATIONS], request[PRINCIPAL].user_id
    conversation_id = await conversations.resolve(user_id, name)
    if conversation_id is None:
        return None
    [view] = await conversations.find_many(user_id, [conversation_id], include_starting=True)
    return view


async def get_view(request: web.Request) -> ConversationView:
    """Return the conversation of the path; raises NotFound."""
    name = conversation_id_of(request)
    view = await find_view(request, name)
    if view is None:
        raise NotFound(f"Conversation {name} not found")
    return view


async def _known(request: web.Request, order: StartOrder, view: ConversationView) -> StartAnswer:
    """Answer for a conversation that exists; a message of an order that is repeated has been taken."""
    tasks, _ = await request.app[CONVERSATIONS].starts.search(
        request[PRINCIPAL].user_id, conversation_id=view.conversation.id, limit=1
    )
    taken = [first_message(task.request) for task in tasks]
    message = first_message(order)
    return from_known(view, is_ignored=message is not None and message not in taken)


async def _start(request: web.Request, order: StartOrder) -> StartAnswer:
    return _from_task(
        await request.app[CONVERSATIONS].start(
            request[PRINCIPAL].user_id, order, generation=Generation.V0
        )
    )


def _from_task(task: StartTask) -> StartAnswer:
    return StartAnswer(
        conversation_id=task.request.alias or task.conversation_id,
        conversation_status=ConversationStatus.STARTING,
    )


_UNKNOWN = {
    "status": "error",
    "message": "Conversation not found",
    "msg_id": "CONVERSATION$NOT_FOUND",
}
