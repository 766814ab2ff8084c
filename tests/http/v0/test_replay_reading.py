"""Recordings of both generations, read into steps."""

import asyncio
import json
import tracemalloc
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from agentsvc.base.errors import BadRequest, InvalidRequest
from agentsvc.domain.orders import RecordedStep
from agentsvc.http.v0.conversations import StartBody, post_conversation
from agentsvc.http.v0.replay import NO_MESSAGE, NO_TRAJECTORY, NO_TURN, NOT_JSON, read_recording

type Fields = dict[str, Any]

HELLO: Fields = {"action": "message", "source": "user", "args": {"content": "hello"}}


def act(action: str, **args: Any) -> Fields:
    return {"id": 1, "action": action, "source": "agent", "args": args}


def tool(name: str, arguments: Any = None, **fields: Any) -> Fields:
    action = {"kind": "SomeAction", "command": "ls", "timeout": None}
    call = {"id": "c", "name": name, "arguments": json.dumps(arguments or {"command": "ls"})}
    return {"kind": "ActionEvent", "id": "a1", "source": "agent", "tool_name": name} | {
        "tool_call": call,
        "action": action,
        **fields,
    }


def speech(source: str, text: str, **image: Any) -> Fields:
    content: list[Fields] = [{"type": "text", "text": text}]
    content += [{"type": "image", **image}] if image else []
    return {"kind": "MessageEvent", "source": source, "llm_message": {"content": content}}


def read(*events: Fields) -> list[RecordedStep]:
    return list(read_recording(json.dumps(events)))


def uses(*events: Fields) -> list[tuple[str, Fields]]:
    """Return what the agent does in a recording that begins with a greeting."""
    return [(use.tool, use.arguments) for step in read(HELLO, *events) for use in step.uses]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{broken", NOT_JSON),
        ("[" * 5000, NOT_JSON),
        ("3", NO_TRAJECTORY),
        ("[]", NO_TRAJECTORY),
        ('{"trajectory": 1}', NO_TRAJECTORY),
        ('[{"id": 1}]', NO_TRAJECTORY),
        ("[3]", NO_TRAJECTORY),
        ('[{"action": "message"}, {"observation": "run"}]', NO_MESSAGE),
        ('{"trajectory": [{"action": "finish"}]}', NO_MESSAGE),
        ('[{"kind": "MessageEvent"}]', NO_MESSAGE),
        (json.dumps([HELLO]), NO_TURN),
    ],
)
def test_what_is_no_recording_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_recording(text)
    assert caught.value.message == message
    assert caught.value.extra["status"] == "error"


@pytest.mark.parametrize("inner", [10**30, json.loads("[" * 300 + "]" * 300)])
def test_extremes_inside_a_recording_are_refused(inner: Any) -> None:
    with pytest.raises((BadRequest, InvalidRequest)):
        read(HELLO, act("run", command="ls", cwd=inner))
    with pytest.raises((BadRequest, InvalidRequest)):
        read(speech("user", "hello"), tool("terminal", {"command": "ls", "more": inner}))


async def test_others_have_their_turn_while_a_recording_is_read() -> None:
    async def post() -> None:
        with pytest.raises(BadRequest, match=NO_TRAJECTORY):
            await post_conversation(request, StartBody(replay_json="3"))

    request = make_mocked_request("POST", "/")
    async with asyncio.TaskGroup() as group:
        posting = group.create_task(post())
        await asyncio.sleep(0)
        assert not posting.done()


def test_a_recording_of_very_many_values_is_refused_in_little_memory() -> None:
    text = "[" + "[]," * 1_000_000 + "[]]"
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="too many values"):
            read_recording(text)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("event", "names"),
    [
        (act("browse_interactive", browser_actions="goto"), "browse_interactive"),
        (act("call_tool_mcp", name="x"), "call_tool_mcp"),
        (act("run_ipython", code="1"), "run_ipython"),
        (act("delegate"), "delegate"),
        (act("never heard of"), "never heard of"),
        (act("run"), "command"),
        (act("run", command=3), "command"),
        (act("read"), "path"),
        (act("write", path="a.txt", content=""), "a.txt"),
        (act("write", path="/a", content="x", start=3), "middle"),
        (act("write", path="/a"), "content"),
        (act("edit", path="/a", impl_source="llm_based_edit", content="x"), "made by a model"),
        (act("edit", path="/a", command=["create"]), "made by a model"),
        ({"action": "run", "args": [1]}, "args"),
        (tool("browser_navigate"), "browser_navigate"),
        (tool(""), "uses the tool ``"),
        (tool("terminal", action=3), "action"),
        (tool("terminal", tool_call={"arguments": "{"}), "not JSON"),
        (tool("terminal", tool_call={"arguments": "[]"}), "not JSON"),
        (tool("terminal", tool_call={"arguments": '{"a":' + "[" * 5000}), "not JSON"),
    ],
)
def test_what_cannot_be_done_again_is_refused_by_name(event: Fields, names: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read(HELLO, act("think", thought="so"), event)
    assert caught.value.message.startswith("replay_json cannot be replayed: event 2 ")
    assert names in caught.value.message


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (act("run", command="ls", thought=""), [("terminal", {"command": "ls"})]),
        (
            act("run", command="C-c", is_input=True),
            [("terminal", {"command": "C-c", "is_input": True})],
        ),
        (
            act("run", command="ls # all", is_static=True, cwd="/a b"),
            [("terminal", {"command": "( cd -- '/a b' && ls # all\n)"})],
        ),
        (
            act("read", path="/a", view_range=[1, 2]),
            [("file_editor", {"command": "view", "path": "/a", "view_range": [1, 2]})],
        ),
        (
            act("write", path="/a b", content="x\n", start=0, end=-1),
            [
                ("terminal", {"command": "rm -f -- '/a b'"}),
                ("file_editor", {"command": "create", "path": "/a b", "file_text": "x\n"}),
            ],
        ),
        (
            act("edit", path="/a", command="insert", new_str="x", insert_line=0, content=""),
            [
                (
                    "file_editor",
                    {"command": "insert", "path": "/a", "new_str": "x", "insert_line": 0},
                )
            ],
        ),
        (act("think", thought="so"), [("think", {"thought": "so"})]),
        (act("finish", final_thought="bye"), [("finish", {"message": "bye"})]),
        (act("finish"), [("finish", {"message": "Done."})]),
        (
            act("task_tracking", command="plan", task_list=[{"id": 1, "title": "t"}, 3]),
            [("task_tracker", {"command": "plan", "task_list": [{"title": "t"}]})],
        ),
        (act("recall", query="x"), []),
        (act("run", command="rm x", confirmation_state="rejected"), []),
        (act("run", command="rm x", confirmation_state="awaiting_confirmation"), []),
        (
            act("run", command="rm x", confirmation_state="confirmed"),
            [("terminal", {"command": "rm x"})],
        ),
        ({"observation": "run", "content": "x", "extras": {}}, []),
    ],
)
def test_actions_become_uses_of_tools(event: Fields, expected: list[tuple[str, Fields]]) -> None:
    assert uses(event, act("think", thought="end"))[:-1] == expected


def test_what_the_agent_says_goes_with_what_it_does_next() -> None:
    spoken: Fields = {"action": "message", "source": "agent", "args": {"content": "I look."}}
    _, first, second, third, fourth = read(
        HELLO, spoken, act("run", command="ls", thought="Now."), spoken, HELLO, spoken
    )
    assert (first.text, len(first.uses)) == ("I look.\n\nNow.", 1)
    assert (second.text, second.uses, second.ends_run) == ("I look.", (), True)
    assert third.message is not None
    assert fourth.text == "I look."


def test_images_of_the_user_are_kept() -> None:
    images = {"content": "see", "image_urls": ["data:image/png;base64,AA", 3]}
    step = read({**HELLO, "args": images}, act("finish"))[0]
    assert step.message is not None
    assert step.message.content[1].image_urls == ("data:image/png;base64,AA",)


def test_a_recording_of_version_1_is_read() -> None:
    steps = read(
        {"kind": "SystemPromptEvent", "source": "agent"},
        speech("user", "Begin.", image_urls=["http://i/1"]),
        tool(
            "terminal",
            {"command": "ls", "security_risk": "LOW", "summary": "List"},
            thought=[{"type": "text", "text": "First."}],
        ),
        tool("terminal", {"command": "rm -r /"}, id="a2"),
        {"kind": "UserRejectObservation", "action_id": "a2"},
        tool("nothing valid", action=None),
        tool("terminal", tool_call=None),
        speech("agent", "Done?"),
    )
    begin, listed, again, asked = steps
    assert begin.message is not None
    assert [part.kind for part in begin.message.content] == ["text", "image"]
    assert (listed.text, listed.uses[0].arguments) == ("First.", {"command": "ls"})
    assert again.uses[0].arguments == {"command": "ls"}
    assert (asked.text, asked.uses) == ("Done?", ())


@pytest.mark.parametrize("odd", [None, 3, [], {}, [{}], "x", {"a": []}])
@pytest.mark.parametrize(
    "name",
    [
        "action",
        "args",
        "source",
        "observation",
        "kind",
        "id",
        "tool_call",
        "llm_message",
        "thought",
    ],
)
def test_odd_members_of_an_event_are_no_bug(name: str, odd: Any) -> None:
    for event in (act("run", command="ls"), tool("terminal"), speech("user", "x")):
        try:
            read(HELLO, {**event, name: odd}, {"kind": "UserRejectObservation", "action_id": odd})
        except BadRequest:
            continue
