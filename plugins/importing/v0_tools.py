"""Converts V0 tool calls to those of current tools. Pure.

Calls of tools that no longer exist become calls of a tool server, with their arguments.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from agentsvc.extension.reading import member

type Fields = Mapping[str, Any]

ANSWERED: Final = frozenset(
    {"read", "edit", "write", "run", "run_ipython", "browse", "delegate", "mcp", "message", "chat"}
)
"""Observations with a meaning even without their action."""

_NO_TOOL: Final = frozenset(
    {"null", "recall", "start", "pause", "resume", "stop", "loop_recovery", "push", "send_pr"}
)
_EDITS: Final = frozenset({"view", "create", "str_replace", "insert", "undo_edit"})
_TASK_STATES: Final = frozenset({"todo", "in_progress", "done"})
_MAX_TASKS: Final = 1000


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, and the action that it was called with."""

    tool: str
    action: dict[str, Any]


def use_of(name: str, args: Fields) -> ToolCall | None:
    """Convert an action to a tool call, or None if it is not one."""
    if name in _NO_TOOL:
        return None
    build = TOOLS.get(name)
    return _unknown_tool(name, args) if build is None else build(args)


def observation_of(use: ToolCall, content: str, extras: Fields, event: Fields) -> dict[str, Any]:
    """Convert the observation of a tool call."""
    kind = use.action["kind"]
    match kind:
        case "TerminalAction":
            more = _terminal_fields(use, extras, event)
        case "FileEditorAction":
            more = _editor_fields(use, extras)
        case "TaskTrackerAction":
            more = {name: use.action[name] for name in ("command", "task_list")}
        case "MCPToolAction":
            more = {"tool_name": use.tool}
        case _:
            more = {}
    named = {"kind": kind.replace("Action", "Observation")}
    return {"content": [text_part(content)], "is_error": False, **more, **named}


def text_part(text: str) -> dict[str, Any]:
    """Return the part of a message for a text."""
    return {"type": "text", "text": text, "cache_prompt": False}


def string_of(fields: Fields, name: str) -> str:
    """Return a string member, or an empty string if it is missing or of another type."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def list_of(fields: Fields, name: str) -> list[Any]:
    """Return a list member, or an empty list if it is missing or of another type."""
    value = fields.get(name)
    return value if isinstance(value, list) else []


def _run(args: Fields) -> ToolCall:
    action = {
        "command": string_of(args, "command"),
        "is_input": args.get("is_input") in (True, "true"),
        "timeout": None,
        "reset": False,
        "kind": "TerminalAction",
    }
    return ToolCall(tool="terminal", action=action)


def _file(args: Fields, **given: Any) -> ToolCall:
    action = {"command": "view", "path": string_of(args, "path"), **given}
    return ToolCall(tool="file_editor", action={**action, "kind": "FileEditorAction"})


def _read(args: Fields) -> ToolCall:
    seen = list_of(args, "view_range")
    is_range = bool(seen) and all(type(line) is int for line in seen)
    return _file(args, view_range=seen if is_range else None)


def _write(args: Fields) -> ToolCall:
    return _file(args, command="create", file_text=string_of(args, "content"))


def _edit(args: Fields) -> ToolCall:
    command = string_of(args, "command")
    if command not in _EDITS:
        return _unknown_tool("edit", args)
    line = args.get("insert_line")
    texts = {name: args.get(name) for name in ("file_text", "old_str", "new_str")}
    return _file(
        args,
        command=command,
        insert_line=line if type(line) is int and line >= 0 else None,
        **{name: text if isinstance(text, str) else None for name, text in texts.items()},
    )


def _think(args: Fields) -> ToolCall:
    action = {"thought": string_of(args, "thought"), "kind": "ThinkAction"}
    return ToolCall(tool="think", action=action)


def _finish(args: Fields) -> ToolCall:
    text = string_of(args, "final_thought") or string_of(args, "thought")
    return ToolCall(tool="finish", action={"message": text, "kind": "FinishAction"})


def _track(args: Fields) -> ToolCall:
    tasks = [one for one in list_of(args, "task_list")[:_MAX_TASKS] if isinstance(one, dict)]
    action = {
        "command": "plan" if args.get("command") == "plan" else "view",
        "task_list": [_task(one) for one in tasks],
        "kind": "TaskTrackerAction",
    }
    return ToolCall(tool="task_tracker", action=action)


def _task(task: Fields) -> dict[str, str]:
    status = string_of(task, "status")
    return {
        "title": string_of(task, "title"),
        "notes": string_of(task, "notes"),
        "status": status if status in _TASK_STATES else "todo",
    }


def _call(args: Fields) -> ToolCall:
    action = {"data": member(args, "arguments"), "kind": "MCPToolAction"}
    return ToolCall(tool=_tool_name(args), action=action)


def _tool_name(args: Fields) -> str:
    name = string_of(args, "name")
    return name if name.isprintable() and 0 < len(name) <= 100 else "mcp"  # noqa: PLR2004


def _unknown_tool(name: str, args: Fields) -> ToolCall:
    tool = name if name.isidentifier() and len(name) <= 100 else "tool"  # noqa: PLR2004
    left = ("thought", "confirmation_state", "security_risk")
    data = {key: value for key, value in args.items() if key not in left}
    return ToolCall(tool=tool, action={"data": data, "kind": "MCPToolAction"})


def _terminal_fields(use: ToolCall, extras: Fields, event: Fields) -> dict[str, Any]:
    code = member(extras, "metadata").get("exit_code")
    return {
        "command": string_of(extras, "command") or use.action["command"],
        "exit_code": code if type(code) is int else None,
        "timeout": False,
        "is_error": event.get("success") is False and type(code) is not int,
    }


def _editor_fields(use: ToolCall, extras: Fields) -> dict[str, Any]:
    texts = {name: extras.get(name) for name in ("old_content", "new_content")}
    return {
        "command": use.action["command"],
        "path": string_of(extras, "path") or use.action["path"] or None,
        "prev_exist": extras.get("prev_exist") is not False,
        **{name: text if isinstance(text, str) else None for name, text in texts.items()},
    }


TOOLS: Final[Mapping[str, Callable[[Fields], ToolCall]]] = {
    "run": _run,
    "read": _read,
    "write": _write,
    "edit": _edit,
    "think": _think,
    "finish": _finish,
    "task_tracking": _track,
    "call_tool_mcp": _call,
}
