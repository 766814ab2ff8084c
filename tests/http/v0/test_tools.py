"""The tools of an agent as the older generation is shown them: what they are asked, what comes of it."""

from typing import Any

import pytest

from tests.http.v0.event_samples import action, last, observation, text


@pytest.mark.parametrize(
    ("fields", "kind", "args", "message"),
    [
        (
            {"kind": "FileEditorAction", "command": "view", "path": "/a", "view_range": [1, 2]},
            "read",
            {"path": "/a", "view_range": [1, 2], "impl_source": "oh_aci"},
            "Reading file: /a",
        ),
        (
            {"kind": "FileEditorAction", "command": "create", "path": "/a", "file_text": "x"},
            "edit",
            {"path": "/a", "command": "create", "file_text": "x", "old_str": None},
            "Editing file: /a",
        ),
        (
            {"kind": "TaskTrackerAction", "command": "plan", "task_list": [{"title": "t"}]},
            "task_tracking",
            {"command": "plan", "task_list": [{"title": "t"}]},
            "Managing 1 task item",
        ),
        (
            {"kind": "ThinkAction", "thought": "hm"},
            "think",
            {"thought": "hm"},
            "I am thinking...: hm",
        ),
        (
            {"kind": "MCPToolAction", "data": {"q": 1}},
            "call_tool_mcp",
            {"name": "tool", "arguments": {"q": 1}},
            None,
        ),
        (
            {"kind": "GrepAction", "pattern": "x"},
            "call_tool_mcp",
            {"name": "tool", "arguments": {"pattern": "x"}},
            None,
        ),
        (
            {"kind": "BrowserNavigateAction", "url": "http://a", "new_tab": False},
            "browse_interactive",
            {"browser_actions": 'tool(url="http://a", new_tab=false)'},
            None,
        ),
    ],
)
def test_a_tool_is_shown_as_the_older_action(
    fields: dict[str, Any], kind: str, args: dict[str, Any], message: str | None
) -> None:
    event = last([action(fields)])
    assert event["action"] == kind
    assert event["args"] | args == event["args"]
    assert message is None or event["message"] == message


def test_a_commands_time_limit_is_shown() -> None:
    event = last([action({"kind": "TerminalAction", "command": "ls", "timeout": 5})])
    assert event["timeout"] == 5.0


@pytest.mark.parametrize(
    ("written", "arguments"),
    [('{"a": 1}', {"a": 1}), ("{broken", {"arguments": "{broken"}), ("[1]", {"arguments": [1]})],
)
def test_a_tool_call_nobody_understood_shows_what_was_written(
    written: str, arguments: dict[str, Any]
) -> None:
    event = last([action(None, tool_call={"arguments": written})])
    assert event["args"]["arguments"] == arguments


@pytest.mark.parametrize(
    ("fields", "kind", "members"),
    [
        (
            {"kind": "FileEditorObservation", "command": "view", "path": "/a"},
            "read",
            {"message": "I read the file /a."},
        ),
        (
            {"kind": "FileEditorObservation", "command": "create", "path": "/a", "new_content": ""},
            "edit",
            {"message": "I edited the file /a."},
        ),
        (
            {"kind": "FileEditorObservation", "command": "create", "is_error": True},
            "error",
            {"content": "words"},
        ),
        ({"kind": "ThinkObservation"}, "think", {"content": "words"}),
        (
            {"kind": "TaskTrackerObservation", "command": "view", "task_list": []},
            "task_tracking",
            {"extras": {"command": "view", "task_list": []}},
        ),
        (
            {"kind": "MCPToolObservation"},
            "mcp",
            {"extras": {"name": "search", "arguments": {}}},
        ),
        ({"kind": "BrowserObservation", "screenshot_data": "AA"}, "browse", {"content": "words"}),
        (
            {"kind": "TerminalObservation", "command": "x", "exit_code": 2},
            "run",
            {"success": False},
        ),
    ],
)
def test_an_outcome_is_shown_as_the_older_observation(
    fields: dict[str, Any], kind: str, members: dict[str, Any]
) -> None:
    event = last([observation({**fields, "content": text("words")}, tool_name="search")])
    assert event["observation"] == kind
    assert event | members == event


def test_the_outcome_of_a_tool_servers_tool_repeats_its_arguments() -> None:
    asked = action({"kind": "MCPToolAction", "data": {"q": 1}})
    event = last([asked, observation({"kind": "MCPToolObservation"}, tool_name="search")])
    assert event["extras"] == {"name": "search", "arguments": {"q": 1}}
    assert event["cause"] == 1
