"""Converts recorded actions to calls of the tools that agents have now. Pure."""

from collections.abc import Callable, Mapping
from shlex import quote
from typing import Any, Final

import msgspec

from agentsvc.domain import ToolUse
from agentsvc.http.wire import check_extremes

type Fields = dict[str, Any]

NO_EFFECT: Final = frozenset(
    {
        "system",
        "start",
        "null",
        "recall",
        "condensation",
        "condensation_request",
        "loop_recovery",
        "change_agent_state",
        "pause",
        "resume",
        "stop",
    }
)
"""Actions that neither change the sandbox nor send anything to the agent."""

_TOOLS: Final = frozenset({"terminal", "file_editor", "task_tracker", "think", "finish"})
_EDITS: Final = ("view", "create", "str_replace", "insert", "undo_edit")
_EDIT_FIELDS: Final = (
    "command",
    "path",
    "file_text",
    "old_str",
    "new_str",
    "insert_line",
    "view_range",
)
_METADATA: Final = frozenset({"security_risk", "summary", "kind"})
"""Fields of a tool call that the agent adds and the tool does not take."""


class NotReplayableError(Exception):
    """An action cannot be replayed; the message is the end of a sentence, "event 3 …"."""


def tool_calls_of_v0_action(name: str, args: Fields) -> tuple[ToolUse, ...]:
    """Convert a V0 action to tool calls; raises NotReplayableError."""
    build = _BUILDERS.get(name)
    if build is None:
        raise NotReplayableError(f"is a `{name}` action, which cannot be replayed")
    return build(args)


def tool_calls_of_v1_action(tool: str, written: str, action: Fields) -> tuple[ToolUse, ...]:
    """Convert a V1 action to tool calls; raises NotReplayableError.

    Uses the arguments that the model wrote, or the parsed action if they are missing.
    """
    if tool not in _TOOLS:
        raise NotReplayableError(f"uses the tool `{tool}`, which cannot be replayed")
    try:
        arguments = msgspec.json.decode(written, type=Fields) if written else action
        check_extremes(written.encode())
    except (msgspec.DecodeError, RecursionError) as exc:
        raise NotReplayableError("has arguments that are not JSON") from exc
    arguments = {
        key: value for key, value in arguments.items() if key not in _METADATA and value is not None
    }
    return (ToolUse(tool=tool, arguments=arguments),)


def _run(args: Fields) -> tuple[ToolUse, ...]:
    command = _required(args, "command")
    if args.get("is_input"):
        return (ToolUse(tool="terminal", arguments={"command": command, "is_input": True}),)
    if args.get("is_static"):
        # A static command ran in a new shell, in a directory that the action may name.
        folder = args.get("cwd")
        place = f"cd -- {quote(folder)} && " if isinstance(folder, str) and folder else ""
        command = f"( {place}{command}\n)"
    return (ToolUse(tool="terminal", arguments={"command": command}),)


def _read(args: Fields) -> tuple[ToolUse, ...]:
    arguments: Fields = {"command": "view", "path": _path(args)}
    shown = args.get("view_range")
    if isinstance(shown, list) and shown:
        arguments["view_range"] = shown
    return (ToolUse(tool="file_editor", arguments=arguments),)


def _write(args: Fields) -> tuple[ToolUse, ...]:
    if args.get("start", 0) != 0 or args.get("end", -1) != -1:
        raise NotReplayableError("writes into the middle of a file, which cannot be replayed")
    path, content = _path(args), args.get("content")
    if not isinstance(content, str):
        raise NotReplayableError("has no `content`")
    made = {"command": "create", "path": path, "file_text": content}
    return (
        ToolUse(tool="terminal", arguments={"command": f"rm -f -- {quote(path)}"}),
        ToolUse(tool="file_editor", arguments=made),
    )


def _edit(args: Fields) -> tuple[ToolUse, ...]:
    command = args.get("command") or "view"
    if args.get("impl_source") == "llm_based_edit" or command not in _EDITS:
        raise NotReplayableError("is an edit made by a model, which cannot be replayed")
    _path(args)
    arguments = {name: args[name] for name in _EDIT_FIELDS if args.get(name) is not None}
    return (ToolUse(tool="file_editor", arguments=arguments | {"command": command}),)


def _think(args: Fields) -> tuple[ToolUse, ...]:
    return (ToolUse(tool="think", arguments={"thought": _required(args, "thought")}),)


def _finish(args: Fields) -> tuple[ToolUse, ...]:
    message = args.get("final_thought") or args.get("thought") or "Done."
    return (ToolUse(tool="finish", arguments={"message": str(message)}),)


def _track(args: Fields) -> tuple[ToolUse, ...]:
    arguments: Fields = {"command": args.get("command") or "view"}
    tasks = args.get("task_list")
    if isinstance(tasks, list):
        arguments["task_list"] = [_task(task) for task in tasks if isinstance(task, dict)]
    return (ToolUse(tool="task_tracker", arguments=arguments),)


def _task(task: Fields) -> Fields:
    return {name: str(task[name]) for name in ("title", "notes", "status") if task.get(name)}


def _path(args: Fields) -> str:
    path = _required(args, "path")
    if not path.startswith("/"):
        raise NotReplayableError(f"has a path that is not absolute: {path[:200]}")
    return path


def _required(args: Fields, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str):
        raise NotReplayableError(f"has no `{name}`")
    return value


_BUILDERS: Final[Mapping[str, Callable[[Fields], tuple[ToolUse, ...]]]] = {
    "run": _run,
    "read": _read,
    "write": _write,
    "edit": _edit,
    "think": _think,
    "finish": _finish,
    "task_tracking": _track,
}
