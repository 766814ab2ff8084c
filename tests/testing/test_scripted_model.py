"""The scripted model speaks the wire format of OpenAI chat completions."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from agentsvc.testing.llm import (
    Reply,
    Script,
    ScriptedModel,
    ToolCall,
    call,
    calls,
    fail,
    finish,
    say,
)

TOOL = {
    "type": "function",
    "function": {
        "name": "terminal",
        "parameters": {
            "type": "object",
            "properties": {"command": {}, "security_risk": {}, "summary": {}},
            "required": ["command"],
        },
    },
}
SCRIPTS: dict[str, Script] = {
    "two": [call("terminal", command="ls", text="Looking."), say("Seen.")],
    "both": [calls(ToolCall(tool="terminal", arguments={"command": "a"}), ToolCall(tool="b"))],
    "costly": [say("x", prompt_tokens=7, completion_tokens=3)],
    "bad": [fail(500)],
    "own": [lambda turn: say(f"step {turn.step} of {turn.user_text}, saw {turn.last_output!r}")],
}


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(scripts=SCRIPTS) as model:
        yield model


@pytest.fixture
async def http(model: ScriptedModel) -> AsyncIterator[aiohttp.ClientSession]:
    headers = {"Authorization": f"Bearer {model.key.reveal()}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        yield session


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def request(*messages: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": list(messages), "tools": [TOOL], **members}


async def ask(
    http: aiohttp.ClientSession, model: ScriptedModel, body: Any, *, status: int = 200
) -> dict[str, Any]:
    async with http.post(f"{model.url}/chat/completions", json=body) as response:
        assert response.status == status
        answer: dict[str, Any] = await response.json()
        return answer


async def stream(
    http: aiohttp.ClientSession, model: ScriptedModel, body: dict[str, Any]
) -> list[dict[str, Any]]:
    async with http.post(f"{model.url}/chat/completions", json=body) as response:
        assert response.content_type == "text/event-stream"
        text = await response.text()
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [msgspec.json.decode(part) for part in parts[:-1]]


async def test_a_tool_call_is_completed_by_what_the_agent_demands(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    answer = await ask(http, model, request(user("[script:two]")))
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Looking."
    function = choice["message"]["tool_calls"][0]["function"]
    arguments = msgspec.json.decode(function["arguments"])
    assert arguments == {"command": "ls", "security_risk": "LOW", "summary": "Use terminal"}
    assert answer["usage"]["total_tokens"] == 1100


async def test_the_place_in_the_script_follows_from_the_messages(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    first = await ask(http, model, request(user("[script:two]")))
    message = first["choices"][0]["message"]
    result = {
        "role": "tool",
        "tool_call_id": message["tool_calls"][0]["id"],
        "content": [{"type": "text", "text": "a.txt"}],
    }
    body = request(user("[script:two]"), message, result)
    for _ in range(2):
        second = await ask(http, model, body)
        assert second["choices"][0]["message"]["content"] == "Seen."
    again = await ask(http, model, request(*body["messages"], user("[script:own] more")))
    content = again["choices"][0]["message"]["content"]
    assert content == "step 0 of [script:own] more, saw 'a.txt'"


async def test_a_later_message_without_a_marker_gets_the_follow_up(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    body = request(user("a"), {"role": "assistant", "content": "b"}, user("c"))
    answer = await ask(http, model, body)
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "finish"


async def test_behind_its_end_a_script_finishes(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    spoken = {"role": "assistant", "content": "x"}
    answer = await ask(http, model, request(user("[script:costly]"), spoken))
    assert answer["choices"][0]["message"]["content"] == "Done."


async def test_an_unknown_script_is_said(model: ScriptedModel, http: aiohttp.ClientSession) -> None:
    answer = await ask(http, model, request(user("[script:none]")))
    assert "none" in answer["choices"][0]["message"]["content"]


async def test_a_stream_carries_the_same_in_pieces(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = await stream(http, model, request(user("[script:both]"), **options))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["prompt_tokens"] == 1000
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0]["role"] == "assistant"
    pieces = [part for delta in deltas for part in delta.get("tool_calls", ())]
    arguments = ["", ""]
    for piece in pieces:
        arguments[piece["index"]] += piece["function"]["arguments"]
    assert msgspec.json.decode(arguments[0])["command"] == "a"
    assert [piece["function"]["name"] for piece in pieces if "id" in piece] == ["terminal", "b"]
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_stream_has_no_usage_unless_asked(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    chunks = await stream(http, model, request(user("[script:costly]"), stream=True))
    assert all("usage" not in chunk for chunk in chunks)
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)
    assert text == "x"


async def test_titles_and_summaries_are_no_turns(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    system = {"role": "system", "content": "You generate concise, descriptive titles."}
    body = {"model": "scripted", "messages": [system, user("[script:two]")]}
    assert (await ask(http, model, body))["choices"][0]["message"]["content"] == model.title
    body = {"model": "scripted", "messages": [user("Condense [script:two]")]}
    assert "summary" in (await ask(http, model, body))["choices"][0]["message"]["content"]


async def test_usage_can_be_set_for_a_turn(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    answer = await ask(http, model, request(user("[script:costly]")))
    assert answer["usage"]["prompt_tokens"] == 7
    assert answer["usage"]["total_tokens"] == 10


async def test_a_wrong_key_is_refused_as_openai_does(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    wrong = {"Authorization": "Bearer wrong"}
    for path in ("/models", "/models/scripted"):
        async with http.get(model.url + path, headers=wrong) as response:
            assert response.status == 401
    url = f"{model.url}/chat/completions"
    async with http.post(url, headers=wrong, json=request(user("a"))) as response:
        assert response.status == 401
        assert (await response.json())["error"]["code"] == "invalid_api_key"
    assert model.refused == 3


@pytest.mark.parametrize("status", [429, 500, 503, 418])
async def test_failures_come_on_demand(
    model: ScriptedModel, http: aiohttp.ClientSession, status: int
) -> None:
    model.fail_next(status)
    failed = await ask(http, model, request(user("[script:two]")), status=status)
    assert failed["error"]["message"]
    await ask(http, model, request(user("[script:two]")))
    await ask(http, model, request(user("[script:bad]")), status=500)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"model": "scripted", "messages": []},
        {"messages": [{"role": "user", "content": "a"}]},
        {"model": "scripted", "messages": [{"content": "a"}]},
        {"model": "scripted", "messages": [{"role": "tool", "tool_call_id": "x", "content": ""}]},
        {
            "model": "scripted",
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "x"}]},
                {"role": "user", "content": "a"},
            ],
        },
        {"model": "scripted", "messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]},
    ],
)
async def test_a_request_that_openai_refuses_is_refused(
    model: ScriptedModel, http: aiohttp.ClientSession, body: Any
) -> None:
    answer = await ask(http, model, body, status=400)
    assert answer["error"]["type"] == "invalid_request_error"


async def test_the_models_are_listed(model: ScriptedModel, http: aiohttp.ClientSession) -> None:
    async with http.get(f"{model.url}/models") as response:
        assert [one["id"] for one in (await response.json())["data"]] == ["scripted"]
    async with http.get(f"{model.url}/models/scripted") as response:
        assert (await response.json())["object"] == "model"
    async with http.get(f"{model.url}/models/other") as response:
        assert response.status == 404


async def test_it_can_be_restarted_in_the_middle(
    model: ScriptedModel, http: aiohttp.ClientSession
) -> None:
    url = model.url
    await model.stop()
    await model.start()
    assert model.url == url
    await ask(http, model, request(user("[script:two]")))


async def test_a_turn_may_take_its_time() -> None:
    async with ScriptedModel([Reply(text="late", delay_seconds=0.05)]) as model:
        headers = {"Authorization": f"Bearer {model.key.reveal()}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            answer = await ask(http, model, request(user("a")))
    assert answer["choices"][0]["message"]["content"] == "late"
    assert finish("x").calls[0].tool == "finish"
