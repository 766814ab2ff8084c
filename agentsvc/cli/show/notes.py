"""Formats the events of a conversation as readable notes. No I/O."""

import difflib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from agentsvc.cli.text import clean

_ESCAPE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_MAX_LINES: Final = 12
_WIDTH: Final = 160


class NoteKind(StrEnum):
    """The kind of a part of a note, which selects its style on the screen."""

    USER = "user"
    AGENT = "agent"
    COMMAND = "command"
    OUTPUT = "output"
    STATE = "state"
    ERROR = "error"
    ADDED = "added"
    REMOVED = "removed"


class NotePart(msgspec.Struct, frozen=True):
    """A text of one kind; it may have several lines."""

    tone: NoteKind
    text: str


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One event: time, source and text."""

    at: str
    who: str
    parts: tuple[NotePart, ...]


type Event = Mapping[str, Any]


def to_note(event: Event) -> Note:
    """Return the note of any event; a malformed event is shown by its kind only."""
    kind = str(event.get("kind"))
    try:
        who, parts = _DESCRIBERS.get(kind, _describe_other)(event)
    except (AttributeError, KeyError, TypeError, ValueError):
        who, parts = _describe_other(event)
    shown = tuple(NotePart(part.tone, _shown(part)) for part in parts if part.text.strip())
    return Note(at=clean(str(event.get("timestamp"))[11:19]), who=clean(who), parts=shown)


def find_created_file(events: list[Event]) -> str | None:
    """Return the path of the last file that the agent created with its editor, or None."""
    for event in reversed(events):
        action = event.get("action") or {}
        if event.get("tool_name") == "file_editor" and action.get("command") == "create":
            return str(action["path"])
    return None


def find_outcome(events: list[Event]) -> str | None:
    """Return `finished`, `error` or `stuck` once the agent's run is over, else None."""
    for event in reversed(events):
        if event.get("key") == "execution_status":
            value = str(event.get("value"))
            return value if value in {"finished", "error", "stuck"} else None
    return None


type Description = tuple[str, list[NotePart]]


def _describe_prompt(event: Event) -> Description:
    tools = ", ".join(str(it.get("name") or it.get("title")) for it in event.get("tools") or ())
    return "agent", [NotePart(NoteKind.STATE, f"is ready, with the tools {tools}")]


def _describe_message(event: Event) -> Description:
    tone = NoteKind.USER if event.get("source") == "user" else NoteKind.AGENT
    message = event.get("llm_message") or {}
    return str(event.get("source")), [NotePart(tone, _text_of(message.get("content")))]


def _describe_action(event: Event) -> Description:
    action = event.get("action") or {}
    thought = NotePart(NoteKind.AGENT, _text_of(event.get("thought")))
    return "agent", [thought, *_describe_tool(str(event.get("tool_name")), action)]


def _describe_tool(tool: str, action: Event) -> list[NotePart]:
    match tool:
        case "terminal":
            return [NotePart(NoteKind.COMMAND, f"$ {action.get('command')}")]
        case "file_editor":
            head = NotePart(NoteKind.COMMAND, f"{action.get('command')} {action.get('path')}")
            return [head, NotePart(NoteKind.OUTPUT, str(action.get("file_text") or ""))]
        case "finish":
            return [NotePart(NoteKind.AGENT, str(action.get("message")))]
        case _:
            given = {name: value for name, value in action.items() if name != "kind"}
            return [NotePart(NoteKind.COMMAND, f"{tool} {msgspec.json.encode(given).decode()}")]


def _describe_observation(event: Event) -> Description:
    observation = event.get("observation") or {}
    parts = []
    if changed := list(_describe_change(observation)):
        parts.extend(changed)
    elif event.get("tool_name") != "finish":
        parts.append(NotePart(NoteKind.OUTPUT, _text_of(observation.get("content"))))
    exit_code = observation.get("exit_code")
    if exit_code is not None:
        parts.append(
            NotePart(NoteKind.STATE if exit_code == 0 else NoteKind.ERROR, f"exit code {exit_code}")
        )
    return "sandbox", parts or [NotePart(NoteKind.STATE, "the agent is done")]


def _describe_change(observation: Event) -> Iterator[NotePart]:
    """Yield the diff of an edited existing file, with adjacent lines of one kind joined."""
    old, new = observation.get("old_content"), observation.get("new_content")
    if not isinstance(old, str) or not isinstance(new, str) or not observation.get("prev_exist"):
        return
    tones = {"+": NoteKind.ADDED, "-": NoteKind.REMOVED}
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=2, lineterm="")
    for tone, group in itertools.groupby(
        itertools.islice(lines, 2, None), lambda line: tones.get(line[:1], NoteKind.OUTPUT)
    ):
        yield NotePart(tone, "\n".join(group))


def _describe_state(event: Event) -> Description:
    value = event.get("value")
    match event.get("key"):
        case "execution_status":
            text = f"is {value}"
        case "model_refusal":
            refusal = value if isinstance(value, dict) else {}
            text = (
                f"the model returned an error ({refusal.get('status')}, {refusal.get('message')});"
                " the agent retries"
            )
        case _:
            # Internal state of the agent server.
            text = ""
    return "state", [NotePart(NoteKind.STATE, text)]


def _describe_error(event: Event) -> Description:
    text = event.get("error") or event.get("detail") or event.get("code") or event.get("kind")
    return str(event.get("source")), [NotePart(NoteKind.ERROR, str(text))]


def _describe_other(event: Event) -> Description:
    return str(event.get("source")), [NotePart(NoteKind.STATE, str(event.get("kind")))]


_DESCRIBERS: Final[Mapping[str, Callable[[Event], Description]]] = {
    "SystemPromptEvent": _describe_prompt,
    "MessageEvent": _describe_message,
    "ActionEvent": _describe_action,
    "ObservationEvent": _describe_observation,
    "ConversationStateUpdateEvent": _describe_state,
    "AgentErrorEvent": _describe_error,
    "ConversationErrorEvent": _describe_error,
    "ServerErrorEvent": _describe_error,
}


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part["text"]) for part in parts if part.get("text"))


def _shown(part: NotePart) -> str:
    """Return a text without control characters; long output is truncated."""
    text = _ESCAPE.sub("", part.text).replace("\t", "    ")
    legible = "".join(char for char in text if char == "\n" or char.isprintable()).strip("\n")
    if part.tone in (NoteKind.USER, NoteKind.AGENT):
        return legible
    lines = legible.split("\n")
    more = len(lines) - _MAX_LINES
    if more > 1:
        lines = [*lines[:_MAX_LINES], f"… {more} more lines"]
    return "\n".join(line if len(line) <= _WIDTH else f"{line[:_WIDTH]}…" for line in lines)
