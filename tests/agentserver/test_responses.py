"""What answers of an agent server mean: decoding, errors, sums."""

import time

import msgspec
import pytest

from agentsvc.agentserver.client import AgentClient
from agentsvc.agentserver.responses import (
    AgentPage,
    BashOutput,
    ConversationStats,
    Output,
    StartedCommand,
    decode,
    decode_conversation,
    decode_events,
    to_error,
    tokens_of,
)
from agentsvc.base.errors import AgentRefused, AgentsvcError, AgentUnavailable, Conflict, NotFound
from agentsvc.base.values import Secret

KEY = Secret("the-session-key")


def error(status: int, body: object, *hide: Secret) -> AgentsvcError:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return to_error(status, raw, "POST /x", (KEY, *hide))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, AgentRefused),
        (400, AgentRefused),
        (401, AgentRefused),
        (404, NotFound),
        (409, Conflict),
        (422, AgentRefused),
        (429, AgentUnavailable),
        (500, AgentUnavailable),
        (503, AgentUnavailable),
    ],
)
def test_each_status_means_one_error(status: int, kind: type[AgentsvcError]) -> None:
    found = error(status, {"detail": "why"})
    assert isinstance(found, kind)
    assert str(status) in found.detail


def test_the_message_says_what_the_server_said() -> None:
    assert error(400, {"detail": "Path must be absolute"}).message.endswith("Path must be absolute")
    fault = {"detail": "Internal Server Error", "exception": "KeyError: 'x'"}
    assert "KeyError: 'x'" in error(500, fault).message


def test_a_validation_error_names_the_places_but_not_the_input() -> None:
    problem = {"loc": ["body", "tags", 0], "msg": "is bad", "input": "something private"}
    message = error(422, {"detail": [problem, "plain"]}).message
    assert "body.tags.0: is bad; plain" in message
    assert "private" not in message


def test_an_answer_of_very_many_values_is_not_decoded() -> None:
    many = b"[" + b"[]," * 1_000_000 + b"[]]"
    with pytest.raises(AgentRefused, match="too many values"):
        decode(AgentPage, b'{"items":' + many + b"}")
    assert "[[],[]" in error(400, b'{"detail":' + many + b"}").message


def test_secrets_do_not_appear_in_an_error() -> None:
    body = {"detail": "key the-session-key, model sk-123"}
    message = error(400, body, Secret("sk-123"), Secret("")).message
    assert "the-session-key" not in message
    assert "sk-123" not in message
    assert "**********" in message
    # One may begin with another.
    known = Secret("sk-123"), Secret("sk-123-of-team")
    assert "team" not in error(400, {"detail": "sk-123-of-team, sk-123"}, *known).message


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b"\xff\xfe", b'{"detail": 3}', b"[]", b"null"),
        *(b'{"detail":[{"loc":5}]}', b'{"detail":[{"loc":null,"msg":[1]}]}'),
        *(b'{"detail":%s}' % DEEP, b'{"detail":"no","more":%s}' % DEEP),
        b'{"detail":[%s1%s]}' % (b"[" * 900, b"]" * 900),
    ],
)
def test_an_error_body_may_be_anything(body: bytes) -> None:
    assert error(400, body).message.startswith("The agent server refused")


def test_a_long_error_is_cut() -> None:
    assert len(error(400, {"detail": "x" * 5000}).message) < 1100
    assert len(error(400, b"x" * 9000).message) < 1100


def test_a_conversation_is_read_with_nulls_and_unknown_members() -> None:
    raw = (
        b'{"id":"11111111-2222-3333-4444-555555555555","execution_status":"running",'
        b'"title":null,"tags":{"a":"b"},"stats":{"usage_to_metrics":{}},"new":{"x":1},'
        b'"agent":{"kind":"Agent","llm":{"model":"openai/x","api_key":null}}}'
    )
    info = decode_conversation(raw)
    assert info.hex_id == "11111111222233334444555555555555"
    assert info.execution_status == "running"
    assert info.agent.llm.model == "openai/x"


@pytest.mark.parametrize(
    "raw", [b"{}", b"[]", b'{"id":1}', b'{"id":"\xff"}', b"", b'{"id":"a","more":%s}' % DEEP]
)
def test_what_is_no_conversation_is_refused(raw: bytes) -> None:
    with pytest.raises(AgentRefused):
        decode_conversation(raw)


def test_an_event_of_another_form_is_left_out() -> None:
    raw = [b"{}", b'{"id":1}', b'{"more":%s}' % DEEP, b'{"id":"a"}']
    assert [one.id for one in decode_events(msgspec.json.Decoder(StartedCommand), raw)] == ["a"]


def test_costs_are_summed_over_usage_ids() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "context_window": 100}
    metrics = {"accumulated_cost": 0.5, "accumulated_token_usage": usage}
    both = {"agent": metrics, "condenser": metrics, "new": {"accumulated_token_usage": None}}
    stats = msgspec.convert({"usage_to_metrics": both}, ConversationStats)
    assert stats.accumulated_cost == 1.0
    tokens = tokens_of(stats.usage_to_metrics.values())
    assert tokens.prompt_tokens == 20
    assert tokens.context_window == 100


def test_output_parts_are_joined_and_bounded() -> None:
    output = Output()
    output.add([BashOutput(order=0, stdout="a" * 200_000, stderr="e")])
    output.add([BashOutput(order=1, stdout="b" * 100_000, exit_code=0)])
    result = output.result(timed_out=False)
    assert result.truncated
    assert result.stdout.endswith("b" * 100_000)
    assert len(result.stdout) == 256 * 1024
    assert (result.stderr, result.exit_code) == ("e", 0)
    assert output.last_order == 1


def test_output_in_very_many_parts_is_joined_in_a_moment() -> None:
    output, began = Output(), time.process_time()
    output.add([BashOutput(stdout="a" * 300_000)])
    output.add([BashOutput(stdout="b")] * 40_000)
    for _ in range(100):
        output.add([BashOutput(stdout="b")] * 100)
    assert output.result(timed_out=False).stdout == "a" * (256 * 1024 - 50_000) + "b" * 50_000
    assert time.process_time() - began < 1


def test_a_closed_client_makes_no_calls() -> None:
    with pytest.raises(AgentUnavailable):
        AgentClient().at("http://127.0.0.1:1", KEY)
