"""Helpers for commands on one conversation: find it, resume it, send it messages."""

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
    """Return the conversation with this id or unique id prefix; raises CommandFailed."""
    wanted = conversation_id.replace("-", "").lower()
    if len(wanted) == _ID_LENGTH:
        asked = api.call("GET", CONVERSATIONS, query={"ids": wanted})
        found: list[Record] = [one for one in asked if one]
    else:
        everything = api.pages(f"{CONVERSATIONS}/search", {"include_sub_conversations": "true"})
        found = [one for one in everything if wanted and one["id"].startswith(wanted)]
    return only(found, "conversations", conversation_id)


def find_named(everything: list[Record], what: str, wanted: str) -> Record:
    """Return the item with a name, or with a unique id prefix.

    `what` is the plural noun for messages. Raises CommandFailed for no match and for several.
    """
    found = [one for one in everything if one["name"] == wanted]
    found = found or [one for one in everything if one["id"].startswith(wanted.lower())]
    return only(found, what, wanted, by="the name, or an id that begins with,")


def only(
    found: list[Record], what: str, wanted: str, *, by: str = "an id that begins with"
) -> Record:
    """Return the single item found; raises CommandFailed for no match and for several."""
    if not wanted:
        # An empty prefix matches every id, and the only item could be deleted by mistake.
        found = []
    if len(found) != 1:
        many = "more than one" if found else "none"
        raise CommandFailed(
            f"{many} of the {what} has {by} `{wanted}`", f"run `agentsvc {what} list` to see them"
        )
    return found[0]


def wake(api: Api, conversation: Record) -> Record:
    """Resume the sandbox of a conversation if it is paused, and wait until it runs."""
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
    """Return the error for a sandbox that does not run; without a sandbox it suggests a fork."""
    state, sandbox_id = str(conversation["sandbox_status"]).lower(), conversation["sandbox_id"]
    hint = f"resume it with `agentsvc sandboxes resume {sandbox_id}`, or read `agentsvc sandboxes logs {sandbox_id}`"
    if not sandbox_id or state == "missing":
        hint = f"continue in a new one with `agentsvc conversations fork {conversation['id']}`"
    return CommandFailed(f"the sandbox of this conversation is not running: {state}", hint)


def send_message(api: Api, conversation_id: str, text: str) -> None:
    """Send a message and run the agent; raises CommandFailed for an empty message."""
    check_text(text, "message")
    body = {**user_message(text), "run": True}
    api.call("POST", f"{CONVERSATIONS}/{conversation_id}/send-message", body=body)


def user_message(text: str) -> Record:
    """Return a user message in the format of the API."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def check_text(text: str, what: str) -> None:
    """Raise CommandFailed for a blank text."""
    if not text.strip():
        raise CommandFailed(f"the {what} is empty", "nothing was sent")


def answer_agent(api: Api, conversation: Record, *, accept: bool, reason: str = "") -> None:
    """Confirm or reject the pending action of an agent; raises CommandFailed if none is pending."""
    if conversation["execution_status"] != "waiting_for_confirmation":
        raise CommandFailed(f"the agent waits for no confirmation, it is {state_of(conversation)}")
    body: dict[str, Any] = {"accept": accept, **({"reason": reason} if reason else {})}
    ask_agent(api, conversation, "events/respond_to_confirmation", body)


class EventStream:
    """The live events of a conversation; each `read` continues after the last event."""

    def __init__(self, api: Api, conversation: Record) -> None:
        self._api = api
        self._path = f"{V1}/conversation/{conversation['id']}/events/stream"
        self.last = -1
        """The id of the last event read; -1 before the first."""

    def read(self) -> Iterator[StreamMessage]:
        """Yield the messages of the stream; raises StreamBroken when the connection is lost."""
        for message in self._api.stream(self._path, after=self.last):
            if message.id is not None:
                self.last = message.id
            yield message


def agent_path(conversation: Record) -> str:
    """Return the server's path for the conversation at its agent server."""
    tail = str(conversation["conversation_url"] or "").partition("/api/conversations/")[2]
    if not tail:
        raise _not_running(conversation)
    return f"/sandboxes/{conversation['sandbox_id']}/agent/api/conversations/{tail}"


def ask_agent(
    api: Api, conversation: Record, what: str, body: Mapping[str, Any] | None = None
) -> Any:
    """Call an operation of a conversation's agent server, such as `pause`."""
    return api.call("POST", f"{agent_path(conversation)}/{what}", body=dict(body or {}))


def state_of(conversation: Record) -> str:
    """Return the state of the agent, or of the sandbox if the agent has none."""
    return str(conversation["execution_status"] or conversation["sandbox_status"].lower())


def spent(conversation: Record) -> str:
    """Return a text with the tokens and US dollars that a conversation has used."""
    used = (conversation.get("metrics") or {}).get("accumulated_token_usage") or {}
    tokens = int(used.get("prompt_tokens") or 0) + int(used.get("completion_tokens") or 0)
    cost = cost_of(conversation)
    parts = [f"{tokens:,} tokens" if tokens else "", f"{cost} dollars" if cost else ""]
    return ", ".join(part for part in parts if part)


def cost_of(conversation: Record) -> str:
    """Return the cost of a conversation in US dollars, "" if unknown."""
    cost = (conversation.get("metrics") or {}).get("accumulated_cost")
    return "" if cost is None else f"{cost:.4f}"
