"""Masking of secrets in the states that agent servers report.

A state contains the settings of the agent. Agent servers mask most secrets in it; the others must
not get into the log, the streams and the webhooks of a conversation.
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
_PARENTS: Final = frozenset(
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
"""Members in which every string may be a secret."""
_PUBLIC: Final = frozenset({"kind", "description", "url", "strategy", "header_name", "username"})
_USER_OF_URL: Final = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY: Final = re.compile(r"([?&][^?=&#\s]*+=)[^&#\s]*")
"""The name is matched possessively, so that no text takes long."""
_MAX_DEPTH: Final = 60
_THREAD_BYTES: Final = 16 * 1024
"""Larger states are masked in a thread."""
_MAX_VALUES: Final = 200_000
"""The most values of a state, because each takes time and memory."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    key: str = ""
    value: Any = None


_state = msgspec.json.Decoder(_State)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


async def mask_states(raw: Sequence[bytes]) -> list[bytes]:
    """Mask events with `mask_state`; large ones in a thread, not to block the event loop."""
    size = sum(len(event) for event in raw if STATE_KIND.encode() in event)
    if size <= _THREAD_BYTES:
        return [mask_state(event) for event in raw]
    return await asyncio.to_thread(lambda: [mask_state(event) for event in raw])


def mask_state(raw: bytes) -> bytes:
    """Return an event unchanged, except that secrets in a state are masked.

    A state that cannot be parsed, or is too large, is reduced to its head.
    """
    if STATE_KIND.encode() not in raw:
        return raw
    head = decode_or_none(raw, Head)
    # The event log skips events without a valid head.
    return raw if head is None or head.kind != STATE_KIND else _mask(raw, head)


def _mask(raw: bytes, head: Head) -> bytes:
    if raw.count(b",") > _MAX_VALUES:
        return _only_head(head)
    state, members = decode_or_none(raw, _state), decode_or_none(raw, _members)
    if state is None or members is None:
        return _only_head(head)
    masked = _masked(state.value, state.key, depth=0)
    if masked == state.value:
        return raw
    members["value"] = msgspec.Raw(msgspec.json.encode(masked))
    return msgspec.json.encode(members)


def _only_head(head: Head) -> bytes:
    members = {name: getattr(head, name) for name in head.__struct_fields__}
    return msgspec.json.encode({**members, "key": _UNREADABLE, "value": None})


def _masked(value: Any, name: str, *, depth: int, is_secret: bool = False) -> Any:
    """Return the value of a member with this name, without secrets."""
    if depth > _MAX_DEPTH:
        return None
    match value:
        case str():
            return _masked_text(value, name, is_secret=is_secret)
        case dict():
            is_secret = is_secret or name in _PARENTS
            return {
                str(key): _masked(item, str(key), depth=depth + 1, is_secret=is_secret)
                for key, item in value.items()
            }
        case list():
            is_secret = is_secret or name in _PARENTS
            return [_masked(item, name, depth=depth + 1, is_secret=is_secret) for item in value]
        case _:
            return value


def _masked_text(text: str, name: str, *, is_secret: bool) -> str:
    if not text or (name not in _PUBLIC and (is_secret or name in _SECRETS)):
        return text and MASK
    if "://" in text and name.endswith("url"):
        return _QUERY.sub(rf"\1{MASK}", _USER_OF_URL.sub(f"{MASK}@", text))
    return text
