"""Converts tool results to V0 observations. Pure."""

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from agentsvc.http.v0.actions import Fields, ShownAction
from agentsvc.http.v0.agent_events import (
    Classification,
    ConversationErrorEvent,
    MessagePart,
    ObservationEvent,
    string_of,
    text_of,
)

type Build = Callable[[ObservationEvent, ShownAction | None], ShownObservation | None]

_METADATA: Final = {
    "exit_code": -1,
    "pid": -1,
    "username": None,
    "hostname": None,
    "working_dir": None,
    "py_interpreter_path": None,
    "prefix": "",
    "suffix": "",
}


class ShownObservation(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an observation event that depend on the tool."""

    observation: str
    content: str
    message: str
    extras: Fields = {}
    success: bool | UnsetType = UNSET


def show_observation(event: ObservationEvent, asked: ShownAction | None) -> ShownObservation | None:
    """Convert an observation event of the agent to a V0 observation, or None if it is not shown.

    `asked` is the action that it answers, if it is known.
    """
    kind = string_of(event.observation, "kind")
    return _BUILDERS.get(kind, _answer_tool)(event, asked)


def show_error(content: str, *, error_id: str = "") -> ShownObservation:
    """Return an error observation with this text."""
    return ShownObservation(
        observation="error", content=content, message=content, extras={"error_id": error_id}
    )


def show_run_error(event: ConversationErrorEvent) -> ShownObservation:
    """Return the error observation of a failed run, with an error id that clients know."""
    content = event.detail or event.code
    return show_error(content, error_id=_error_id(event.code, event.classification))


def _error_id(code: str, classification: Classification | None) -> str:
    if "ContentPolicy" in code:
        return "STATUS$ERROR_LLM_CONTENT_POLICY_VIOLATION"
    kind = classification.kind if classification is not None else "unknown"
    return _ERROR_IDS.get(code) or _ERROR_IDS.get(kind, "STATUS$ERROR")


_ERROR_IDS: Final = {
    # The user's own limit, not the credit at the provider.
    "MaxBudgetReached": "STATUS$ERROR",
    "QuotaReached": "STATUS$ERROR",
    "LLMAuthenticationError": "STATUS$ERROR_LLM_AUTHENTICATION",
    "LLMServiceUnavailableError": "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE",
    "LLMRateLimitError": "CHAT_INTERFACE$AGENT_RATE_LIMITED_STOPPED_MESSAGE",
    "auth": "STATUS$ERROR_LLM_AUTHENTICATION",
    "quota": "STATUS$ERROR_LLM_OUT_OF_CREDITS",
    "rate_limit": "CHAT_INTERFACE$AGENT_RATE_LIMITED_STOPPED_MESSAGE",
    "transient": "STATUS$ERROR_LLM_SERVICE_UNAVAILABLE",
}


def _ran(event: ObservationEvent, _asked: ShownAction | None) -> ShownObservation:
    fields = event.observation
    command = string_of(fields, "command")
    given = fields.get("metadata")
    metadata = {**_METADATA, **(given if isinstance(given, dict) else {})}
    exit_code = fields.get("exit_code")
    if isinstance(exit_code, int):
        metadata["exit_code"] = exit_code
    code = metadata["exit_code"]
    return ShownObservation(
        observation="run",
        content=_content(fields),
        message=f"Command `{command}` executed with exit code {code}.",
        extras={"command": command, "metadata": metadata, "hidden": False},
        success=code == 0,
    )


def _edited_file(event: ObservationEvent, _asked: ShownAction | None) -> ShownObservation:
    fields = event.observation
    content = _content(fields)
    if fields.get("is_error") is True:
        return show_error(content)
    path = string_of(fields, "path")
    if fields.get("command") == "view":
        return ShownObservation(
            observation="read",
            content=content,
            message=f"I read the file {path}.",
            extras={"path": path, "impl_source": "oh_aci"},
        )
    return ShownObservation(
        observation="edit",
        content=content,
        message=f"I edited the file {path}.",
        extras={
            "path": path,
            "prev_exist": fields.get("prev_exist") is not False,
            "old_content": fields.get("old_content"),
            "new_content": fields.get("new_content"),
            "impl_source": "oh_aci",
            "diff": None,
        },
    )


def _thought(event: ObservationEvent, _asked: ShownAction | None) -> ShownObservation:
    content = _content(event.observation) or "Your thought has been logged."
    return ShownObservation(observation="think", content=content, message=content)


def _tracked_tasks(event: ObservationEvent, _asked: ShownAction | None) -> ShownObservation:
    content = _content(event.observation)
    tasks = event.observation.get("task_list") or []
    extras = {"command": string_of(event.observation, "command"), "task_list": tasks}
    return ShownObservation(
        observation="task_tracking", content=content, message=content, extras=extras
    )


def _browsed(event: ObservationEvent, asked: ShownAction | None) -> ShownObservation:
    fields = event.observation
    content = _content(fields)
    screenshot = string_of(fields, "screenshot_data")
    is_error = fields.get("is_error") is True
    return ShownObservation(
        observation="browse",
        content=content,
        message=content,
        extras={
            "url": "",
            "trigger_by_action": "browse_interactive",
            "screenshot": f"data:image/png;base64,{screenshot}" if screenshot else "",
            "screenshot_path": None,
            "error": is_error,
            "open_pages_urls": [],
            "active_page_index": -1,
            "last_browser_action": asked.args.get("browser_actions", "") if asked else "",
            "last_browser_action_error": content if is_error else "",
            "focused_element_bid": "",
        },
    )


def _answer_tool(event: ObservationEvent, asked: ShownAction | None) -> ShownObservation:
    content = _content(event.observation)
    arguments = asked.args.get("arguments", {}) if asked else {}
    extras = {"name": event.tool_name, "arguments": arguments}
    return ShownObservation(observation="mcp", content=content, message=content, extras=extras)


def _hidden(_event: ObservationEvent, _asked: ShownAction | None) -> None:
    """Return None: the finish action already has the message."""


def _content(fields: Fields) -> str:
    try:
        return text_of(msgspec.convert(fields.get("content") or [], list[MessagePart]))
    except msgspec.ValidationError:
        return ""


_BUILDERS: Final[dict[str, Build]] = {
    "TerminalObservation": _ran,
    "FileEditorObservation": _edited_file,
    "PlanningFileEditorObservation": _edited_file,
    "ThinkObservation": _thought,
    "FinishObservation": _hidden,
    "TaskTrackerObservation": _tracked_tasks,
    "BrowserObservation": _browsed,
}
