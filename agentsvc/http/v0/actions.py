"""Converts tool calls to V0 actions. Pure."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.http.v0.agent_events import ActionEvent, string_of, text_of
from agentsvc.http.v0.event_types import Confirmation

RISKS: Final = {"LOW": 0, "MEDIUM": 1, "HIGH": 2}
UNKNOWN_RISK: Final = -1
DEFAULT_FINISH_MESSAGE: Final = "All done! What's next on the agenda?"

type Fields = dict[str, Any]


class ShownAction(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an action event that depend on the tool."""

    action: str
    args: Fields
    message: str
    timeout: float | UnsetType = UNSET

    @property
    def needs_confirmation(self) -> bool:
        """Whether the user may be asked to confirm an action of this kind."""
        return "confirmation_state" in self.args


def show_action(event: ActionEvent) -> ShownAction:
    """Convert an action event of the agent to a V0 action.

    A tool that V0 does not know is shown as a tool of a tool server.
    """
    fields = event.action if event.action is not None else _written_arguments(event)
    kind = string_of(fields, "kind")
    if kind.startswith("Browser"):
        return _browse(event, fields)
    return _BUILDERS.get(kind, _call_tool)(event, fields)


def show_tool_call(event: ActionEvent) -> Fields:
    """Return `tool_call_metadata` of an action: the tool call and the model response with it."""
    arguments = event.tool_call.arguments if event.tool_call is not None else "{}"
    call = {
        "function": {"arguments": arguments, "name": event.tool_name},
        "id": event.tool_call_id,
        "type": "function",
    }
    message = {
        "content": text_of(event.thought) or None,
        "role": "assistant",
        "tool_calls": [call],
        "function_call": None,
    }
    return {
        "function_name": event.tool_name,
        "tool_call_id": event.tool_call_id,
        "model_response": {
            "id": event.llm_response_id or "",
            "object": "chat.completion",
            "choices": [{"finish_reason": "tool_calls", "index": 0, "message": message}],
        },
        "total_calls_in_response": 1,
    }


def _run(event: ActionEvent, fields: Fields) -> ShownAction:
    command = string_of(fields, "command")
    return ShownAction(
        action="run",
        args={
            "command": command,
            "is_input": fields.get("is_input") is True,
            "thought": text_of(event.thought),
            "blocking": False,
            "is_static": False,
            "cwd": None,
            "hidden": False,
            **_guarded(event),
        },
        message=f"Running command: {command}",
        timeout=_number(fields.get("timeout")),
    )


def _number(value: object) -> float | UnsetType:
    try:
        return float(value) if isinstance(value, int | float) else UNSET
    except OverflowError:
        return UNSET


def _edit_file(event: ActionEvent, fields: Fields) -> ShownAction:
    return _read(event, fields) if fields.get("command") == "view" else _edit(event, fields)


def _read(event: ActionEvent, fields: Fields) -> ShownAction:
    path = string_of(fields, "path")
    return ShownAction(
        action="read",
        args={
            "path": path,
            "start": 0,
            "end": -1,
            "thought": text_of(event.thought),
            "impl_source": "oh_aci",
            "view_range": fields.get("view_range"),
            **_guarded(event),
        },
        message=f"Reading file: {path}",
    )


def _edit(event: ActionEvent, fields: Fields) -> ShownAction:
    path = string_of(fields, "path")
    return ShownAction(
        action="edit",
        args={
            "path": path,
            "command": string_of(fields, "command"),
            "file_text": fields.get("file_text"),
            "old_str": fields.get("old_str"),
            "new_str": fields.get("new_str"),
            "insert_line": fields.get("insert_line"),
            "content": "",
            "start": 1,
            "end": -1,
            "thought": text_of(event.thought),
            "impl_source": "oh_aci",
            **_guarded(event),
        },
        message=f"Editing file: {path}",
    )


def _think(_event: ActionEvent, fields: Fields) -> ShownAction:
    thought = string_of(fields, "thought")
    return ShownAction(
        action="think", args={"thought": thought}, message=f"I am thinking...: {thought}"
    )


def _finish(event: ActionEvent, fields: Fields) -> ShownAction:
    thought = text_of(event.thought)
    return ShownAction(
        action="finish",
        args={"final_thought": string_of(fields, "message"), "outputs": {}, "thought": thought},
        message=thought or DEFAULT_FINISH_MESSAGE,
    )


def _track_tasks(event: ActionEvent, fields: Fields) -> ShownAction:
    tasks = fields.get("task_list") or []
    count = len(tasks) if isinstance(tasks, list) else 0
    return ShownAction(
        action="task_tracking",
        args={
            "command": string_of(fields, "command"),
            "task_list": tasks,
            "thought": text_of(event.thought),
        },
        message=f"Managing {count} task item{'' if count == 1 else 's'}",
    )


def _call_tool(event: ActionEvent, fields: Fields) -> ShownAction:
    arguments = {name: value for name, value in fields.items() if name != "kind"}
    if fields.get("kind") == "MCPToolAction":
        arguments = fields.get("data") or {}
    return ShownAction(
        action="call_tool_mcp",
        args={
            "name": event.tool_name,
            "arguments": arguments,
            "thought": text_of(event.thought),
            **_guarded(event),
        },
        message=(
            f"I am interacting with the MCP server with name:\n```\n{event.tool_name}\n```\n"
            f"and arguments:\n```\n{msgspec.json.encode(arguments).decode()}\n```"
        ),
    )


def _browse(event: ActionEvent, fields: Fields) -> ShownAction:
    given = ", ".join(
        f"{name}={msgspec.json.encode(value).decode()}"
        for name, value in fields.items()
        if name != "kind" and value is not None
    )
    call = f"{event.tool_name}({given})"
    return ShownAction(
        action="browse_interactive",
        args={
            "browser_actions": call,
            "thought": text_of(event.thought),
            "browsergym_send_msg_to_user": "",
            "return_axtree": False,
            **_guarded(event),
        },
        message=f"I am interacting with the browser:\n```\n{call}\n```",
    )


def _guarded(event: ActionEvent) -> Fields:
    """Return the additional arguments of an action that the user may be asked to confirm."""
    return {
        "confirmation_state": Confirmation.CONFIRMED,
        "security_risk": RISKS.get(event.security_risk, UNKNOWN_RISK),
    }


def _written_arguments(event: ActionEvent) -> Fields:
    """Return the raw arguments of a tool call that the agent server could not parse."""
    written = event.tool_call.arguments if event.tool_call is not None else "{}"
    try:
        arguments = msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError):
        arguments = written
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


_BUILDERS: Final[dict[str, Callable[[ActionEvent, Fields], ShownAction]]] = {
    "TerminalAction": _run,
    "FileEditorAction": _edit_file,
    "PlanningFileEditorAction": _edit_file,
    "ThinkAction": _think,
    "FinishAction": _finish,
    "TaskTrackerAction": _track_tasks,
}
