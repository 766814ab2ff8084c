"""Helpers for commands on one conversation: find it, resume it, send a message."""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from agentsvc.base import monotonic
from agentsvc.cli import CommandFailed
from agentsvc.cli.client import V1, Api, StreamMessage

CONVERSATIONS: Final = f"{V1}/app-conversations"
SANDBOXES: Final = f"{V1}/sandboxes"

type Record = dict[str, Any]

_ID_LENGTH: Final = 32
_WAKE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.3


def find_conversation(api: Api, conversation_id: str) -> Record:
    """Return the conversation with an id, or the only one whose id begins so; raises CommandFailed."""
    wanted = conversation_id.replace("-", "").lower()
    if len(wanted) == _ID_LENGTH:
        asked = api.call("GET", CONVERSATIONS, query={"ids": wanted})
        found: list[Record] = [one for one in asked if one]
    else:
        everything = api.pages(f"{CONVERSATIONS}/search", {"include_sub_conversations": "true"})
        found = [one for one in everything if wanted and one["id"].startswith(wanted)]
    return only(found, "conversations", conversation_id)


def find_named(everything: list[Record], what: str, wanted: str) -> Record:
    """Return the one of `what` with a name, else the only one whose id begins so.

    Raises CommandFailed for none and for several.
    """
    found = [one for one in everything if one["name"] == wanted]
    found = found or [one for one in everything if one["id"].startswith(wanted.lower())]
    return only(found, what, wanted, by="the name, or an id that begins with,")


def only(
    found: list[Record], what: str, wanted: str, *, by: str = "an id that begins with"
) -> Record:
    """Return the one of `what` that was found; raises CommandFailed for none and for several."""
    if not wanted:
        # Every id begins so, and the only one there is may be meant to be deleted.
        found = []
    if len(found) != 1:
        many = "more than one" if found else "none"
        raise CommandFailed(
            f"{many} of the {what} has {by} `{wanted}`", f"run `agentsvc {what} list` to see them"
        )
    return found[0]


def wake(api: Api, conversation: Record) -> Record:
    """Return a conversation whose sandbox runs, resumed if it was paused; raises CommandFailed."""
    if conversation["sandbox_status"] == "PAUSED":
        api.call("POST", f"{SANDBOXES}/{conversation['sandbox_id']}/resume")
    deadline = monotonic() + _WAKE_SECONDS
    while conversation["sandbox_status"] in {"PAUSED", "STARTING"} and monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        conversation = find_conversation(api, conversation["id"])
    if conversation["sandbox_status"] != "RUNNING":
        raise _not_running(conversation)
    return conversation


def _not_running(conversation: Record) -> CommandFailed:
    """Return what to raise; where there is no sandbox any more, another hint helps."""
    state, sandbox_id = str(conversation["sandbox_status"]).lower(), conversation["sandbox_id"]
    hint = f"`agentsvc sandboxes resume {sandbox_id}` starts it, its log is `agentsvc sandboxes logs {sandbox_id}`"
    if not sandbox_id or state == "missing":
        hint = f"`agentsvc conversations fork {conversation['id']}` goes on in a new one"
    return CommandFailed(f"the sandbox of this conversation does not run: {state}", hint)


def send_message(api: Api, conversation_id: str, text: str) -> None:
    """Send a message, and let the agent go on with it; raises CommandFailed for an empty one."""
    check_text(text, "message")
    body = {**user_message(text), "run": True}
    api.call("POST", f"{CONVERSATIONS}/{conversation_id}/send-message", body=body)


def user_message(text: str) -> Record:
    """Return a message of the user, as the API takes it."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def check_text(text: str, what: str) -> None:
    """Raise CommandFailed for a text that says nothing."""
    if not text.strip():
        raise CommandFailed(f"the {what} is empty", "nothing was sent")


def answer_agent(api: Api, conversation: Record, *, accept: bool, reason: str = "") -> None:
    """Confirm or reject what the agent of a conversation waits to do."""
    if conversation["execution_status"] != "waiting_for_confirmation":
        raise CommandFailed(f"the agent asks for no confirmation, it is {state_of(conversation)}")
    body: dict[str, Any] = {"accept": accept, **({"reason": reason} if reason else {})}
    ask_agent(api, conversation, "events/respond_to_confirmation", body)


class EventStream:
    """The events of a conversation as they come; each reading goes on behind the last one."""

    def __init__(self, api: Api, conversation: Record) -> None:
        self._api = api
        self._path = f"{V1}/conversation/{conversation['id']}/events/stream"
        self.last = -1
        """The id of the last event that was read."""

    def read(self) -> Iterator[StreamMessage]:
        """Yield the messages of the stream; raises StreamBroken when it breaks off."""
        for message in self._api.stream(self._path, after=self.last):
            if message.id is not None:
                self.last = message.id
            yield message


def agent_path(conversation: Record) -> str:
    """Return the path on the server of the conversation in its agent server."""
    tail = str(conversation["conversation_url"] or "").partition("/api/conversations/")[2]
    if not tail:
        raise _not_running(conversation)
    return f"/sandboxes/{conversation['sandbox_id']}/agent/api/conversations/{tail}"


def ask_agent(
    api: Api, conversation: Record, what: str, body: Mapping[str, Any] | None = None
) -> Any:
    """Ask the agent server of a conversation for something, such as `pause`."""
    return api.call("POST", f"{agent_path(conversation)}/{what}", body=dict(body or {}))


def state_of(conversation: Record) -> str:
    """Return the state of the agent, or that of the sandbox where the agent has none."""
    return str(conversation["execution_status"] or conversation["sandbox_status"].lower())


def spent(conversation: Record) -> str:
    """Return the tokens and the dollars that a conversation has used so far."""
    used = (conversation.get("metrics") or {}).get("accumulated_token_usage") or {}
    tokens = int(used.get("prompt_tokens") or 0) + int(used.get("completion_tokens") or 0)
    cost = cost_of(conversation)
    parts = [f"{tokens:,} tokens" if tokens else "", f"{cost} dollars" if cost else ""]
    return ", ".join(part for part in parts if part)


def cost_of(conversation: Record) -> str:
    """Return what a conversation has cost so far, in dollars."""
    cost = (conversation.get("metrics") or {}).get("accumulated_cost")
    return "" if cost is None else f"{cost:.4f}"
