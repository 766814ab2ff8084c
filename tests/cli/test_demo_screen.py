import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentsvc.cli.demo import commands_to_try
from agentsvc.cli.show.colour import ColourScreen
from agentsvc.cli.show.notes import Note, NoteKind, find_created_file, find_outcome, to_note
from agentsvc.cli.show.screen import Screen, open_screen


def event(kind: str, source: str = "agent", **fields: Any) -> dict[str, Any]:
    return {
        "id": "1",
        "kind": kind,
        "timestamp": "2026-11-20T19:15:05.622327",
        "source": source,
        **fields,
    }


def texts(*several: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in several]


def action(tool: str, *, thought: str = "", **arguments: Any) -> dict[str, Any]:
    thoughts = texts(thought) if thought else []
    return event("ActionEvent", tool_name=tool, action=arguments, thought=thoughts)


def told(given: dict[str, Any]) -> list[tuple[NoteKind, str]]:
    return [(part.tone, part.text) for part in to_note(given).parts]


def test_a_change_of_a_file_is_told_as_a_diff() -> None:
    observation = {"prev_exist": True, "old_content": "a\nb\nc\n", "new_content": "a\nB\nc\n"}
    given = event(
        "ObservationEvent", "environment", tool_name="file_editor", observation=observation
    )
    assert told(given) == [
        (NoteKind.OUTPUT, "@@ -1,3 +1,3 @@\n a"),
        (NoteKind.REMOVED, "-b"),
        (NoteKind.ADDED, "+B"),
        (NoteKind.OUTPUT, " c"),
    ]


def test_a_note_says_when_and_who() -> None:
    note = to_note(event("MessageEvent", "user", llm_message={"content": texts("hello", "you")}))
    assert (note.at, note.who) == ("19:15:05", "user")
    assert [(part.tone, part.text) for part in note.parts] == [(NoteKind.USER, "hello\nyou")]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            event("SystemPromptEvent", tools=[{"name": "terminal"}, {"title": "finish"}]),
            [(NoteKind.STATE, "is ready, with the tools terminal, finish")],
        ),
        (event("MessageEvent", llm_message={"content": texts("hi")}), [(NoteKind.AGENT, "hi")]),
        (
            action("terminal", thought="I look.", command="ls"),
            [(NoteKind.AGENT, "I look."), (NoteKind.COMMAND, "$ ls")],
        ),
        (
            action("file_editor", command="create", path="/w/a.py", file_text="x = 1\ny = 2\n"),
            [(NoteKind.COMMAND, "create /w/a.py"), (NoteKind.OUTPUT, "x = 1\ny = 2")],
        ),
        (action("file_editor", command="view", path="/w"), [(NoteKind.COMMAND, "view /w")]),
        (action("finish", message="Done."), [(NoteKind.AGENT, "Done.")]),
        (action("browse", kind="B", url="x"), [(NoteKind.COMMAND, 'browse {"url":"x"}')]),
        (
            event(
                "ObservationEvent",
                tool_name="terminal",
                observation={"content": texts("out"), "exit_code": 0},
            ),
            [(NoteKind.OUTPUT, "out"), (NoteKind.STATE, "exit code 0")],
        ),
        (
            event("ObservationEvent", tool_name="terminal", observation={"exit_code": 3}),
            [(NoteKind.ERROR, "exit code 3")],
        ),
        (
            event("ObservationEvent", tool_name="finish", observation={"content": texts("x")}),
            [(NoteKind.STATE, "the agent is done")],
        ),
        (
            event("ConversationStateUpdateEvent", key="execution_status", value="running"),
            [(NoteKind.STATE, "is running")],
        ),
        (
            event("ConversationStateUpdateEvent", key="full_state", value={}),
            [],
        ),
        (
            event(
                "ConversationStateUpdateEvent",
                key="stats",
                value={
                    "usage_to_metrics": {
                        "agent": {
                            "accumulated_cost": 0.5,
                            "accumulated_token_usage": {
                                "prompt_tokens": 1000,
                                "completion_tokens": 34,
                            },
                        },
                        "condenser": {"accumulated_cost": 0.25, "accumulated_token_usage": None},
                    }
                },
            ),
            [],
        ),
        (event("AgentErrorEvent", error="no such tool"), [(NoteKind.ERROR, "no such tool")]),
        (
            event("ConversationErrorEvent", code="X", detail="it broke"),
            [(NoteKind.ERROR, "it broke")],
        ),
        (event("PauseEvent", "user"), [(NoteKind.STATE, "PauseEvent")]),
    ],
)
def test_an_event_is_told_in_words(given: dict[str, Any], expected: list[Any]) -> None:
    assert told(given) == expected


@pytest.mark.parametrize("kind", ["MessageEvent", "ActionEvent", "ObservationEvent", "Unheard"])
def test_an_event_without_its_fields_still_makes_a_note(kind: str) -> None:
    assert to_note({"kind": kind}).parts is not None


@pytest.mark.parametrize(
    "given",
    [
        {"kind": "MessageEvent", "llm_message": "x"},
        {"kind": "MessageEvent", "llm_message": {"content": [7]}},
        {"kind": "ActionEvent", "action": "x"},
        {"kind": "SystemPromptEvent", "tools": 5},
        {"kind": "ObservationEvent", "observation": "x"},
    ],
)
def test_an_event_that_is_not_as_its_kind_should_be_is_told_by_that(given: dict[str, Any]) -> None:
    given = {**given, "source": "a\x1b[2Kgent", "timestamp": "2026-01-01T\x1b]52;c;x\x07"}
    note = to_note(given)
    assert not any(char in note.at + note.who for char in "\x1b\x07")
    assert note.parts


def test_what_could_disturb_a_terminal_is_left_out() -> None:
    message = event(
        "MessageEvent", llm_message={"content": texts("a\x1b[31mb\x07\tc\x1b[?2004h\n\x1b[?2004l")}
    )
    assert told(message) == [(NoteKind.AGENT, "ab    c")]


def test_of_a_long_text_the_beginning_is_shown() -> None:
    text = "\n".join(["x" * 500, *map(str, range(40))])
    shown = told(event("ObservationEvent", observation={"content": texts(text)}))[0][1].split("\n")
    assert shown[0] == "x" * 160 + "…"
    assert shown[-1] == "… 29 more lines"
    assert len(shown) == 13


def test_the_file_the_agent_made_is_found_in_its_events() -> None:
    made = [action("file_editor", command="create", path=path) for path in ("/w/a", "/w/b")]
    view = action("file_editor", command="view", path="/w/c")
    assert find_created_file([*made, view]) == "/w/b"
    assert find_created_file([view, event("PauseEvent")]) is None


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [([], None), (["running"], None), (["running", "finished"], "finished"), (["error"], "error")],
)
def test_the_run_is_over_when_its_last_status_says_so(
    statuses: list[str], expected: str | None
) -> None:
    kind = "ConversationStateUpdateEvent"
    events = [event(kind, key="execution_status", value=value) for value in statuses]
    assert find_outcome([*events, event("PauseEvent")]) == expected


def show_all(screen: Screen) -> None:
    screen.title("Title")
    screen.line("a line")
    screen.busy("working")
    screen.stage("working", "0.10 s")
    screen.busy("")
    screen.note(to_note(action("terminal", thought="I look.", command="ls\n-l")))
    screen.note(to_note(event("ObservationEvent", observation={"content": texts("a\nb")})))
    screen.note(Note(at="", who="state", parts=()))
    screen.file("/w/a.py", "x = 1\n\ny = 2\n")
    screen.table(("Stage", "Time"), [("one", "1.00 s"), ("all of it", "1.00 s")])


def test_plain_text_is_aligned_and_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    show_all(Screen())
    assert capsys.readouterr().out == (
        "\nTitle\n\n"
        "a line\n"
        "  working                     0.10 s\n"
        "  19:15:05  agent        I look.\n"
        "                         $ ls\n"
        "                         -l\n"
        "  19:15:05  sandbox      | a\n"
        "                         | b\n"
        "  /w/a.py\n"
        "  | x = 1\n"
        "  |\n"
        "  | y = 2\n"
        "  Stage      Time\n"
        "  one        1.00 s\n"
        "  all of it  1.00 s\n"
    )


def test_colour_says_the_same() -> None:
    console = Console(file=io.StringIO(), width=60, force_terminal=True, highlight=False)
    with console.capture() as captured:
        show_all(ColourScreen(console))
    shown = captured.get()
    assert "\x1b[" in shown
    for text in ("Title", "a line", "working", "I look.", "$ ls", "/w/a.py", "all of it"):
        assert text in shown


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {"TERM": "xterm", "NO_COLOR": ""}, ColourScreen),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, Screen),
        (True, {"TERM": "dumb", "NO_COLOR": ""}, Screen),
        (False, {"TERM": "xterm", "NO_COLOR": ""}, Screen),
    ],
)
def test_colour_is_for_terminals_whose_owner_wants_it(
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    variables: dict[str, str],
    expected: type,
) -> None:
    class Output(io.StringIO):
        def isatty(self) -> bool:
            return is_terminal

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", Output())
    assert type(open_screen()) is expected


def test_the_commands_to_try_are_for_both_generations_and_read_the_key() -> None:
    lines = commands_to_try("http://127.0.0.1:1", Path("/srv/a b/key"), "abc")
    assert {what[:2] for what, _ in lines} == {"V0", "V1"}
    assert all(
        "$(cat '/srv/a b/key')" in line and "http://127.0.0.1:1/api/" in line for _, line in lines
    )
