"""The body of a delivery, made of what is stored at the time it is sent."""

from typing import Any

import msgspec

from agentsvc.base import to_stored
from agentsvc.extension.server import EventLog, Target, status_of
from agentsvc.plugin import Phase

from .model import Delivery


class _EventData(msgspec.Struct, frozen=True, kw_only=True):
    conversation_id: str
    seq: int
    event: msgspec.Raw


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    timestamp: str
    data: Any


class _SandboxChange(msgspec.Struct, frozen=True, kw_only=True):
    """What the queue keeps of a sandbox."""

    id: str
    target: Target
    phase: Phase | None
    reason: str


class _SandboxData(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    reason: str


_sandbox = msgspec.json.Decoder(_SandboxChange)


async def make_body(delivery: Delivery, events: EventLog) -> bytes | None:
    """Return the body of a delivery, None if its event was deleted meanwhile."""
    data = await _data(delivery, events)
    if data is None:
        return None
    return msgspec.json.encode(
        _Payload(type=delivery.type, timestamp=to_stored(delivery.created_at), data=data)
    )


async def _data(delivery: Delivery, events: EventLog) -> Any:
    if delivery.data is not None:
        is_sandbox = delivery.type == "sandbox.changed"
        return _shown_sandbox(delivery.data) if is_sandbox else msgspec.Raw(delivery.data.encode())
    seq = delivery.seq or 0
    found = await events.read_range(delivery.lane, from_seq=seq, limit=1)
    if not found or found[0].seq != seq:
        return None
    return _EventData(conversation_id=delivery.lane, seq=seq, event=msgspec.Raw(found[0].body))


def _shown_sandbox(data: str) -> _SandboxData:
    kept = _sandbox.decode(data)
    status = status_of(kept.target, kept.phase)
    return _SandboxData(id=kept.id, status=status, reason=kept.reason)
