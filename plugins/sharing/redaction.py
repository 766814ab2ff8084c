"""Redacts events for readers of links. Pure."""

import json
import math
import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any, Final

REDACTED: Final = "[redacted]"
PATH: Final = "[path]"

SHOWN_KINDS: Final = (
    "ACPToolCallEvent",
    "ActionEvent",
    "AgentErrorEvent",
    "Condensation",
    "ConversationErrorEvent",
    "InterruptEvent",
    "MessageEvent",
    "ObservationEvent",
    "PauseEvent",
    "UserRejectObservation",
)
"""The kinds of events that are shown: messages and actions, but not the configuration of the agent."""


class Redaction(StrEnum):
    """The parts of events that a link hides."""

    TOOL_OUTPUT = "tool_output"
    """Output and results of tools"""
    FILES = "files"
    """Contents of files that tools read and write"""
    PATHS = "paths"
    """Absolute paths, and paths in fields of tools"""


_OUTPUTS: Final = frozenset({"observation", "error", "content"})
"""Members of tool events that contain the result, in addition to `raw_output`."""
_ARE_OUTPUTS: Final = frozenset({"ObservationEvent", "AgentErrorEvent", "ACPToolCallEvent"})
_STRUCTURE: Final = frozenset({"kind", "command", "path", "file_path"})
"""Members of a call and of its result that describe its structure."""
_PARTS: Final = frozenset({"text", "image", "content", "diff", "terminal"})
"""Types of the parts of a tool's result."""
_CONTENTS: Final = frozenset(
    {
        "file_text",
        "old_str",
        "new_str",
        "insert_text",
        "old_content",
        "new_content",
        "old_text",
        "new_text",
        "oldText",
        "newText",
        "patch",
        "diff",
    }
)
_PATHS: Final = frozenset(
    {"path", "file_path", "working_dir", "cwd", "locations", "py_interpreter_path"}
)
_ABSOLUTE: Final = re.compile(
    r"(?<![\w:/.<])~?/(?:[^\s/\"'`:;,|<>()\[\]{}\\]+/)*[^\s/\"'`:;,|<>()\[\]{}\\]+"
)
_FILE_TOOL: Final = re.compile(r"(?i)file|edit|patch|planning|grep")
_FILE_KINDS: Final = frozenset({"read", "edit", "search"})
"""The kinds of file tools in events of ACP agents."""
_MAX_DEPTH: Final = 100


def show(body: bytes, mask: Callable[[str], str], redact: Collection[Redaction]) -> bytes | None:
    """Return a redacted event, or None if it is not shown."""
    try:
        # `json` accepts integers of any size and lone surrogates.
        event = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if event.get("kind") not in SHOWN_KINDS:
        return None
    # The additions of the server to a message are not the user's text.
    if "extended_content" in event:
        event["extended_content"] = []
    try:
        # Redacted before masking, since a secret may equal the name of a member or a tool.
        event = _redacted(event, redact) if redact else event
    except RecursionError:
        return None
    has_paths = Redaction.PATHS in redact
    kind = {"kind": event.pop("kind")}
    event = kind | _walk(event, lambda text: _cleaned(text, mask, has_paths=has_paths))
    return json.dumps(event).encode()


def show_text(
    text: str | None, mask: Callable[[str], str], redact: Collection[Redaction]
) -> str | None:
    """Redact a text other than an event, such as the title."""
    return text and _cleaned(text, mask, has_paths=Redaction.PATHS in redact)


def _cleaned(text: str, mask: Callable[[str], str], *, has_paths: bool) -> str:
    text = mask(text)
    return _ABSOLUTE.sub(PATH, text) if has_paths else text


def _redacted(event: dict[str, Any], redact: Collection[Redaction]) -> dict[str, Any]:
    # The call of the model repeats the content of the action.
    if isinstance(call := event.get("tool_call"), dict):
        event["tool_call"] = {**call, "arguments": "{}"}
    hides_call = Redaction.FILES in redact and _is_of_file(event)
    if event["kind"] in _ARE_OUTPUTS and (hides_call or Redaction.TOOL_OUTPUT in redact):
        event |= {name: _blank(event[name]) for name in _OUTPUTS & event.keys()}
        event |= {"raw_output": REDACTED} if event.get("raw_output") else {}
    if hides_call:
        event |= {name: _blank(event[name]) for name in ("action", "raw_input") if name in event}
    if Redaction.FILES in redact:
        event = _replace(event, _CONTENTS, REDACTED)
    if Redaction.PATHS in redact:
        event = _replace(event, _PATHS, PATH)
    return event


def _is_of_file(event: dict[str, Any]) -> bool:
    name = str(event.get("tool_name", ""))
    return _FILE_TOOL.search(name) is not None or str(event.get("tool_kind")) in _FILE_KINDS


def _blank(value: Any, name: str = "", depth: int = 0) -> Any:
    """Return a value of the same shape, with all texts replaced except structural ones."""
    match value:
        case str():
            is_structure = depth == 1 and name in _STRUCTURE
            is_part = name == "type" and value in _PARTS
            return value if is_structure or is_part or not value else REDACTED
        case dict():
            return {key: _blank(item, key, depth + 1) for key, item in value.items()}
        case list():
            return [_blank(item, name, depth + 1) for item in value]
        case _:
            return value


def _replace(value: Any, names: Collection[str], text: str) -> Any:
    """Replace the texts in members with certain names."""
    match value:
        case dict():
            return {
                key: _walk(item, lambda _: text) if key in names else _replace(item, names, text)
                for key, item in value.items()
            }
        case list():
            return [_replace(item, names, text) for item in value]
        case _:
            return value


def _walk(value: Any, change: Callable[[str], str], depth: int = 0) -> Any:
    """Apply a function to every text in a value."""
    if value in (math.inf, -math.inf):
        # The number overflowed, and JSON has no infinity.
        value = None
    match value:
        case str():
            return change(value)
        case dict() if depth < _MAX_DEPTH:
            return {change(key): _walk(item, change, depth + 1) for key, item in value.items()}
        case list() if depth < _MAX_DEPTH:
            return [_walk(item, change, depth + 1) for item in value]
        case dict() | list():
            return None
        case bool() | None:
            return value
        case _:
            # A secret may be a number.
            return value if (text := str(value)) == (changed := change(text)) else changed
