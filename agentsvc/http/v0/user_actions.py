"""Parses V0 user actions and forwards them to the agent."""

from typing import Annotated, Any, Final

import msgspec

from agentsvc.base import BadRequest, InvalidRequest, convert, in_text, stated
from agentsvc.conversations import MessageQueue, PendingKind
from agentsvc.domain import Message, message_of
from agentsvc.http.v0.conversations import ImageUrls
from agentsvc.http.v0.event_types import AgentState

type UserAction = Message | AgentState

REQUESTED_STATES: Final = {
    AgentState.RUNNING: PendingKind.RUN,
    AgentState.PAUSED: PendingKind.PAUSE,
    AgentState.STOPPED: PendingKind.INTERRUPT,
    AgentState.USER_CONFIRMED: PendingKind.ACCEPT,
    AgentState.USER_REJECTED: PendingKind.REJECT,
}
"""The agent states that a user may request, and the request to the agent for each."""


class ActionBody(msgspec.Struct, frozen=True, kw_only=True):
    """An action before validation; unknown fields are ignored."""

    action: str | None = None
    """Kind of the action: `message` sends a message, `change_agent_state` controls the agent; null
    is refused"""
    args: dict[str, Any] = {}
    """For `message` its `content` and `image_urls`, for `change_agent_state` the `agent_state`:
    `running`, `paused`, `stopped`, `user_confirmed` or `user_rejected`"""


class MessageArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a message action."""

    content: str = ""
    """Text of the message; must not be empty without an image"""
    image_urls: ImageUrls | None = None
    """Images, as http(s) or data URLs; null: none"""


class StateArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `change_agent_state` action."""

    agent_state: AgentState
    """Requested state: `running`, `paused`, `stopped`, `user_confirmed` or `user_rejected`"""


_SAYS_SOMETHING: Final = stated(
    anyOf=[
        {"required": ["content"], "properties": {"content": {"minLength": 1}}},
        {
            "required": ["image_urls"],
            "properties": {"image_urls": {"type": "array", "minItems": 1}},
        },
    ]
)


class MessageAction(msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="message"):
    """A message of the user."""

    args: Annotated[MessageArgs, _SAYS_SOMETHING]
    """The message; other fields are ignored"""


class ShownWish(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `change_agent_state` action."""

    agent_state: Annotated[str, stated(enum=sorted(REQUESTED_STATES))]
    """Requested state of the agent"""


class StateAction(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="change_agent_state"
):
    """A request to change the state of the agent."""

    args: ShownWish
    """The requested state; other fields are ignored"""


type ShownAction = MessageAction | StateAction
"""The body as OpenAPI describes it; `ActionBody` is what handlers decode."""

ACTION_BODY: Final = msgspec.json.Decoder(ActionBody)


def to_user_action(body: ActionBody) -> UserAction:
    """Return the message or the requested state; raises BadRequest for any other action."""
    match body.action:
        case "message":
            return _to_message(_convert(body, MessageArgs))
        case "change_agent_state":
            state = _convert(body, StateArgs).agent_state
            if state in REQUESTED_STATES:
                return state
            raise BadRequest("The agent_state should be one of: " + ", ".join(REQUESTED_STATES))
        case _:
            raise BadRequest('The action should be "message" or "change_agent_state", with args')


async def perform(
    pending: MessageQueue, user_id: str, conversation_id: str, action: UserAction
) -> None:
    """Queue the message or the state request for the agent; raises as `MessageQueue` does.

    A state request is added to the history before it has an effect, as a message is.
    """
    if isinstance(action, Message):
        await pending.send(user_id, conversation_id, action, run=True)
    else:
        await pending.tell(user_id, conversation_id, REQUESTED_STATES[action], state=action)


def _to_message(args: MessageArgs) -> Message:
    message = message_of(args.content, args.image_urls or ())
    if not message.content:
        raise BadRequest("The message is empty")
    return message


def _convert[T](body: ActionBody, kind: type[T]) -> T:
    try:
        return convert(body.args, kind, loc=())
    except InvalidRequest as exc:
        text = f"The args of the {body.action} action do not fit: {in_text(exc)}"
        raise BadRequest(text) from exc
