"""Masks secrets in the state that agent servers report.

A state names the agent as it was ordered. Agent servers hide most of what is secret there; what they
show all the same must not get into the log, the streams and the webhooks of a conversation.
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from agentsvc.base import MASK, decode_or_none
from agentsvc.conversations.event_log import Head

STATE_KIND: Final = "ConversationStateUpdateEvent"

_UNREADABLE: Final = "unreadable"
_SECRETS: Final = frozenset(
    {
        "api_key",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "critic_api_key",
        "llm_api_key",
        "password",
        "secret",
        "session_api_key",
        "token",
    }
)
_HOLDERS: Final = frozenset(
    {
        "acp_env",
        "args",
        "auth",
        "env",
        "extra_headers",
        "headers",
        "litellm_extra_body",
        "secret_sources",
    }
)
"""Members in which every text may be a secret."""
_KEPT: Final = frozenset({"kind", "description", "url", "strategy", "header_name", "username"})
_USER_OF_URL: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY: Final = re.compile(r"([?&][^?=&#\s]*+=)[^&#\s]*")
"""A name ends where the next one begins, and gives nothing back: no text takes long."""
_DEEPEST: Final = 60
_BYTES_AT_ONCE: Final = 16 * 1024
"""How much of states is masked at once."""
_MAX_VALUES: Final = 200_000
"""How many values a state may have: each of them takes time and memory."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    key: str = ""
    value: Any = None


_state = msgspec.json.Decoder(_State)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def mask_states(raw: Sequence[bytes]) -> list[bytes]:
    """Return events as `mask_state` does; what takes a while does not hold up the event loop."""
    size = sum(len(event) for event in raw if STATE_KIND.encode() in event)
    if size <= _BYTES_AT_ONCE:
        return [mask_state(event) for event in raw]
    return await asyncio.to_thread(lambda: [mask_state(event) for event in raw])


def mask_state(raw: bytes) -> bytes:
    """Return an event as it was told, but for the secrets of an agent in a state of it.

    Of a state that cannot be read, or has too much in it, only the head is left.
    """
    if STATE_KIND.encode() not in raw:
        return raw
    head = decode_or_none(raw, Head)
    # What has none is nothing that the event log takes.
    return raw if head is None or head.kind != STATE_KIND else _mask(raw, head)


def _mask(raw: bytes, head: Head) -> bytes:
    if raw.count(b",") > _MAX_VALUES:
        return _head_alone(head)
    state, members = decode_or_none(raw, _state), decode_or_none(raw, _members)
    if state is None or members is None:
        return _head_alone(head)
    masked = _masked(state.value, state.key, depth=0)
    if masked == state.value:
        return raw
    members["value"] = msgspec.Raw(msgspec.json.encode(masked))
    return msgspec.json.encode(members)


def _head_alone(head: Head) -> bytes:
    left = {name: getattr(head, name) for name in head.__struct_fields__}
    return msgspec.json.encode({**left, "key": _UNREADABLE, "value": None})


def _masked(value: Any, name: str, *, depth: int, is_held: bool = False) -> Any:
    """Return a part of a state, which a member of this name has, without secrets."""
    if depth > _DEEPEST:
        return None
    match value:
        case str():
            return _masked_text(value, name, is_held=is_held)
        case dict():
            is_held = is_held or name in _HOLDERS
            return {
                str(key): _masked(item, str(key), depth=depth + 1, is_held=is_held)
                for key, item in value.items()
            }
        case list():
            is_held = is_held or name in _HOLDERS
            return [_masked(item, name, depth=depth + 1, is_held=is_held) for item in value]
        case _:
            return value


def _masked_text(text: str, name: str, *, is_held: bool) -> str:
    if not text or (name not in _KEPT and (is_held or name in _SECRETS)):
        return text and MASK
    if "://" in text and name.endswith("url"):
        return _QUERY.sub(rf"\1{MASK}", _USER_OF_URL.sub(f"{MASK}@", text))
    return text
