"""Redacts events for visitors who have a link. Pure."""

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
"""The kinds of events that are shown: what was said and done, and nothing of how the agent is set up."""


class Redaction(StrEnum):
    """What a link does not show."""

    TOOL_OUTPUT = "tool_output"
    """What tools have printed and returned"""
    FILES = "files"
    """Contents of files that tools read and write"""
    PATHS = "paths"
    """Absolute paths, and what tools name as a path"""


_OUTPUTS: Final = frozenset({"observation", "error", "content"})
"""Members of the events of tools that hold what came of them, beside `raw_output`."""
_ARE_OUTPUTS: Final = frozenset({"ObservationEvent", "AgentErrorEvent", "ACPToolCallEvent"})
_STRUCTURE: Final = frozenset({"kind", "command", "path", "file_path"})
"""Members of a call and of what came of it that say what it is."""
_PARTS: Final = frozenset({"text", "image", "content", "diff", "terminal"})
"""Types of the parts of what a tool has returned."""
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
"""How agents of other makers say that a tool works on files."""
_DEEPEST: Final = 100


def show(body: bytes, mask: Callable[[str], str], redact: Collection[Redaction]) -> bytes | None:
    """Return an event as it is shown, None for one that is not."""
    try:
        # It takes whatever is JSON: integers of any size, and halves of surrogates.
        event = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if event.get("kind") not in SHOWN_KINDS:
        return None
    # What the server has added to a message was not said by the user.
    if "extended_content" in event:
        event["extended_content"] = []
    try:
        # Before it is masked: a secret may have the value of a member's name, or of a tool's.
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
    """Return a text beside the events, such as the title, as it is shown."""
    return text and _cleaned(text, mask, has_paths=Redaction.PATHS in redact)


def _cleaned(text: str, mask: Callable[[str], str], *, has_paths: bool) -> str:
    text = mask(text)
    return _ABSOLUTE.sub(PATH, text) if has_paths else text


def _redacted(event: dict[str, Any], redact: Collection[Redaction]) -> dict[str, Any]:
    # The call as the model wrote it says once more what is in the action.
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
    """Return a value of the same shape, in which only the structure says something."""
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
    """Return a value in which the texts of some members are another one."""
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
    """Return a value with every text in it changed."""
    if value in (math.inf, -math.inf):
        # It was too large for a number, and its name is no JSON.
        value = None
    match value:
        case str():
            return change(value)
        case dict() if depth < _DEEPEST:
            return {change(key): _walk(item, change, depth + 1) for key, item in value.items()}
        case list() if depth < _DEEPEST:
            return [_walk(item, change, depth + 1) for item in value]
        case dict() | list():
            return None
        case bool() | None:
            return value
        case _:
            # A secret may be a number.
            return value if (text := str(value)) == (changed := change(text)) else changed
