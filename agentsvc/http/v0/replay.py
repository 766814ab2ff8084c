"""Recorded trajectories a client wants replayed: they are checked, and refused. Pure."""

from typing import Any, Final, NoReturn

import msgspec

from agentsvc.errors import BadRequest

NOT_JSON: Final = "replay_json is not valid JSON"
NO_TRAJECTORY: Final = (
    "replay_json is not a recorded trajectory: it should be a list of events,"
    ' or an object with such a list under "trajectory"'
)
NOT_AVAILABLE: Final = (
    "Replaying a trajectory is not available on this server; start without replay_json"
)

_EVENT_MARKS: Final = ("action", "observation", "kind")


def refuse_replay(text: str) -> NoReturn:
    """Raise BadRequest that says whether the text is no trajectory, or that none is replayed."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise _refusal(NOT_JSON) from exc
    events = value.get("trajectory") if isinstance(value, dict) else value
    if not isinstance(events, list) or not events or not all(map(_is_event, events)):
        raise _refusal(NO_TRAJECTORY)
    raise _refusal(NOT_AVAILABLE)


def _is_event(value: Any) -> bool:
    """Whether this is an event of either generation."""
    if not isinstance(value, dict):
        return False
    return any(isinstance(value.get(mark), str) for mark in _EVENT_MARKS)


def _refusal(message: str) -> BadRequest:
    return BadRequest(
        message, extra={"status": "error", "message": message, "msg_id": "STATUS$ERROR"}
    )
