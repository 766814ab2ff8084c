"""Builds the body of a delivery from the stored data when it is sent."""

from typing import Any

import msgspec

from agentsvc.base import to_stored
from agentsvc.extension.server import EventLog, Target, status_of
from agentsvc.plugin import Phase

from .model import Delivery


class _SandboxChange(msgspec.Struct, frozen=True, kw_only=True):
    """The stored data of a sandbox's change."""

    id: str
    target: Target
    phase: Phase | None
    reason: str


_sandbox = msgspec.json.Decoder(_SandboxChange)


async def make_body(delivery: Delivery, events: EventLog) -> bytes | None:
    """Return the body of a delivery, or None if its event was deleted."""
    data = await _data(delivery, events)
    if data is None:
        return None
    timestamp = to_stored(delivery.created_at)
    return msgspec.json.encode({"type": delivery.type, "timestamp": timestamp, "data": data})


async def _data(delivery: Delivery, events: EventLog) -> Any:
    if delivery.data is not None:
        is_sandbox = delivery.type == "sandbox.changed"
        return _sandbox_data(delivery.data) if is_sandbox else msgspec.Raw(delivery.data.encode())
    seq = delivery.seq or 0
    found = await events.read_range(delivery.lane, from_seq=seq, limit=1)
    if not found or found[0].seq != seq:
        return None
    return {"conversation_id": delivery.lane, "seq": seq, "event": msgspec.Raw(found[0].body)}


def _sandbox_data(data: str) -> dict[str, str]:
    info = _sandbox.decode(data)
    return {"id": info.id, "status": status_of(info.target, info.phase), "reason": info.reason}
