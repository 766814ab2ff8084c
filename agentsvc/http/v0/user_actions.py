"""Converts V0 user actions to requests to the agent."""

from typing import Annotated, Any, Final

import msgspec

from agentsvc.base import BadRequest, InvalidRequest, convert, in_text, stated
from agentsvc.conversations import MessageQueue, PendingKind
from agentsvc.domain import Message, message_of
from agentsvc.http.v0.conversations import ImageUrls
from agentsvc.http.v0.event_types import AgentState

type UserAction = Message | AgentState

WISHES: Final = {
    AgentState.RUNNING: PendingKind.RUN,
    AgentState.PAUSED: PendingKind.PAUSE,
    AgentState.STOPPED: PendingKind.INTERRUPT,
    AgentState.USER_CONFIRMED: PendingKind.ACCEPT,
    AgentState.USER_REJECTED: PendingKind.REJECT,
}
"""The states a user may ask for, and what the agent is told for each."""


class ActionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A raw action; unknown members pass."""

    action: str | None = None
    """What is to be done: `message` says something, `change_agent_state` tells the agent what to
    do; null is refused"""
    args: dict[str, Any] = {}
    """For `message` its `content` and `image_urls`, for `change_agent_state` the `agent_state`:
    `running`, `paused`, `stopped`, `user_confirmed` or `user_rejected`"""


class MessageArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a message action."""

    content: str = ""
    """The text; not empty where there is no image"""
    image_urls: ImageUrls | None = None
    """Images, by http(s) or data URL; null: none"""


class StateArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `change_agent_state` action."""

    agent_state: AgentState
    """What the agent is to do: `running`, `paused`, `stopped`, `user_confirmed` or `user_rejected`
    """


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
    """Something the user says, for the description."""

    args: Annotated[MessageArgs, _SAYS_SOMETHING]
    """What is said; other members are not read"""


class ShownWish(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `change_agent_state` action, for the description."""

    agent_state: Annotated[str, stated(enum=sorted(WISHES))]
    """What the agent is to do"""


class StateAction(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="action", tag="change_agent_state"
):
    """What the agent is to do, for the description."""

    args: ShownWish
    """What the agent is to do; other members are not read"""


type ShownAction = MessageAction | StateAction

ACTION_BODY: Final = msgspec.json.Decoder(ActionBody)


def to_user_action(body: ActionBody) -> UserAction:
    """Return what an action says or asks for; raises BadRequest for any other action."""
    match body.action:
        case "message":
            return _to_spoken(_convert(body, MessageArgs))
        case "change_agent_state":
            wish = _convert(body, StateArgs).agent_state
            if wish in WISHES:
                return wish
            raise BadRequest("The agent_state should be one of: " + ", ".join(WISHES))
        case _:
            raise BadRequest('The action should be "message" or "change_agent_state", with args')


async def perform(
    pending: MessageQueue, user_id: str, conversation_id: str, action: UserAction
) -> None:
    """Pass on what the user says or asks for; raises as `MessageQueue` does.

    What is asked for is in the history before it has an effect, as a message is.
    """
    if isinstance(action, Message):
        await pending.send(user_id, conversation_id, action, run=True)
    else:
        await pending.tell(user_id, conversation_id, WISHES[action], wish=action)


def _to_spoken(args: MessageArgs) -> Message:
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
