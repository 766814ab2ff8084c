"""Asking a model from the server: what is said of each answer, and where nobody is asked."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from agentsvc.agentserver.safe_connector import Found
from agentsvc.base.values import Secret
from agentsvc.domain.agent_options import Llm, LlmOptions
from agentsvc.models.check import CheckOutcome, check_model
from agentsvc.testing.llm import ScriptedModel
from tests.receivers import Receiver

KEY = "sk-of-the-user"
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "OK"}}]}


@pytest.fixture
async def provider() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


def at(provider: Receiver, model: str = "openai/some", host: str = "127.0.0.1", **more: Any) -> Llm:
    url = f"http://{host}:{provider.port}/v1/"
    return Llm(**{"model": model, "base_url": url, "api_key": Secret(KEY), **more})


def known(provider: Receiver) -> tuple[str, ...]:
    return (f"127.0.0.1:{provider.port}",)


async def test_a_model_is_asked_as_an_agent_would() -> None:
    async with ScriptedModel(key=Secret(KEY)) as model:
        hosts = (model.url.removeprefix("http://").removesuffix("/v1"),)
        llm = Llm(model="openai/scripted", base_url=model.url, api_key=Secret(KEY))
        found = await check_model(llm, hosts)
        assert (found.outcome, found.status) == (CheckOutcome.ANSWERS, 200), found
        [request] = model.requests
        assert request["model"] == "scripted"
        wrong = msgspec.structs.replace(llm, api_key=Secret("sk-other"))
        found = await check_model(wrong, hosts)
        assert (found.outcome, found.status) == (CheckOutcome.FAILED, 401)
        assert "does not accept the key" in found.message
        assert "wants a key" in (await check_model(Llm(**ask(llm, api_key=None)), hosts)).message


def ask(llm: Llm, **changes: Any) -> dict[str, Any]:
    return {"model": llm.model, "base_url": llm.base_url, "api_key": llm.api_key, **changes}


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (200, {"choices": []}, "not as OpenAI's models do"),
        (200, "<html>", "not as OpenAI's models do"),
        (307, {}, "leads elsewhere"),
        (400, {"error": {"message": "The model `x` does not exist"}}, "no such model"),
        (400, {"error": {"message": "API key not valid"}}, "does not accept the key"),
        (400, {"error": {"message": "Your credit balance is too low"}}, "no credit"),
        (402, {"error": "pay"}, "no credit"),
        (403, {"detail": "no"}, "does not accept the key"),
        (404, {"message": "Not Found"}, "no such model"),
        (418, [1], "it answered 418"),
        (429, {"error": {"code": "insufficient_quota", "message": "over"}}, "no credit"),
        (429, {"error": {"message": "slow down"}}, "no more requests"),
        (500, "no JSON", "a fault of its own"),
    ],
)
async def test_what_a_provider_answers_is_said_in_plain_words(
    provider: Receiver, status: int, body: object, words: str
) -> None:
    provider.answer = lambda _: status
    provider.location = "http://169.254.169.254/"
    provider.answer_bytes = msgspec.json.encode(body)
    found = await check_model(at(provider), known(provider))
    assert (found.outcome, found.status) == (CheckOutcome.FAILED, status)
    assert words in found.message
    assert len(provider.received) == 1


async def test_what_a_provider_says_is_shown_short_and_without_the_key(provider: Receiver) -> None:
    provider.answer = lambda _: 401
    said = f"Incorrect API key provided: {KEY}. " + "x" * 10_000
    provider.answer_bytes = msgspec.json.encode({"error": {"message": said}})
    found = await check_model(at(provider), known(provider))
    assert found.said.startswith("Incorrect API key provided: **********. x")
    assert len(found.said) < 1000
    provider.answer_bytes = msgspec.json.encode({"error": {"message": "x" * 490 + KEY}})
    assert KEY[:5] not in (await check_model(at(provider), known(provider))).said
    provider.answer_bytes = b" " * 1_000_000
    assert "Nothing answers" in (await check_model(at(provider), known(provider))).message


async def test_a_model_is_asked_with_the_headers_that_its_user_has_stored(
    provider: Receiver,
) -> None:
    provider.answer = lambda one: 200 if one.headers.get("X-Of-Gateway") == "a secret" else 401
    provider.answer_bytes = msgspec.json.encode(ANSWER)
    options = LlmOptions(extra_headers={"X-Of-Gateway": Secret("a secret")})
    llm = at(provider, api_key=None, options=options)
    assert (await check_model(llm, known(provider))).outcome is CheckOutcome.ANSWERS
    provider.answer = lambda _: 401
    provider.answer_bytes = msgspec.json.encode({"error": "not with a secret"})
    found = await check_model(llm, known(provider))
    assert found.said == "not with **********"
    assert "None is stored, and it takes no header" in found.message


async def test_a_model_that_does_not_answer_in_time_is_given_up(provider: Receiver) -> None:
    provider.may_answer.clear()
    found = await check_model(at(provider), known(provider), time_limit=0.1)
    provider.may_answer.set()
    assert found.message == "No answer came within 0.1 seconds."


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "127.1", "0x7f000001", "[::ffff:7f00:1]"])
async def test_no_model_is_asked_inside_but_at_hosts_of_the_operator(
    provider: Receiver, host: str
) -> None:
    found = await check_model(at(provider, host=host), ("127.0.0.1:1", "10.0.0.0/8"))
    assert found.outcome == CheckOutcome.UNTESTED
    assert "sandboxes.model_hosts" in found.message
    assert provider.received == []


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["93.184.216.34", "127.0.0.1"], ["169.254.169.254"], ["fe80::1%lo"]],
)
async def test_a_name_that_leads_inside_is_not_followed(
    provider: Receiver, addresses: list[str]
) -> None:
    async def look_up(_host: str, _port: int) -> Found:
        return [(int(socket.AF_INET6 if ":" in one else socket.AF_INET), one) for one in addresses]

    llm = at(provider, host="models.example")
    found = await check_model(llm, (), lookup=look_up)
    assert (found.outcome, found.said) == (CheckOutcome.UNTESTED, "")
    assert not any(address in found.message for address in addresses)
    listed = (f"models.example:{provider.port}",)
    if addresses == ["127.0.0.1"]:
        provider.answer_bytes = msgspec.json.encode(ANSWER)
        assert (await check_model(llm, listed, lookup=look_up)).outcome == CheckOutcome.ANSWERS
    elif "169.254.169.254" in addresses:
        assert (await check_model(llm, listed, lookup=look_up)).outcome == CheckOutcome.UNTESTED


@pytest.mark.parametrize(
    ("model", "base_url", "outcome", "words"),
    [
        (None, None, CheckOutcome.UNTESTED, "No model is named"),
        ("some", "https://models.example", CheckOutcome.FAILED, "lacks its provider"),
        ("bedrock/x", None, CheckOutcome.UNTESTED, "`bedrock` cannot be tested here"),
        ("anthropic/x", "https://p.example", CheckOutcome.UNTESTED, "behind a base URL cannot"),
        ("hosted_vllm/x", None, CheckOutcome.UNTESTED, "cannot be tested here"),
        ("openai/x", "models.example/v1", CheckOutcome.FAILED, "The base URL is invalid"),
        ("openai/x", "ftp://models.example/v1", CheckOutcome.FAILED, "The base URL is invalid"),
        (
            "openai/x",
            "https://me:pw@models.example",
            CheckOutcome.FAILED,
            "The base URL is invalid",
        ),
        ("openai/x", "http://[", CheckOutcome.FAILED, "The base URL is invalid"),
        (
            "openai/x",
            "http://300.1.1.1",
            CheckOutcome.FAILED,
            "The host of the base URL is invalid",
        ),
        (
            "openai/x",
            "http://[fe80::1%25lo]/",
            CheckOutcome.FAILED,
            "The host of the base URL is invalid",
        ),
    ],
)
async def test_what_cannot_be_asked_is_said(
    model: str | None, base_url: str | None, outcome: CheckOutcome, words: str
) -> None:
    found = await check_model(Llm(model=model, base_url=base_url), ())
    assert found.outcome == outcome
    assert words in found.message


@pytest.mark.parametrize("key", ["a\r\nb: c", "kéy\N{SNOWMAN}", "\0"])
async def test_a_key_that_no_header_can_hold_is_a_fault_that_is_said(
    provider: Receiver, key: str
) -> None:
    found = await check_model(at(provider, api_key=Secret(key)), known(provider))
    assert found.outcome == CheckOutcome.FAILED
    assert KEY not in found.said


async def test_an_address_without_a_model_is_said(provider: Receiver) -> None:
    secure = at(provider, base_url=f"https://127.0.0.1:{provider.port}/v1")
    assert "TLS" in (await check_model(secure, known(provider))).message
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    gone = at(provider, base_url=f"http://127.0.0.1:{port}/v1")
    found = await check_model(gone, (f"127.0.0.1:{port}",))
    assert "Nothing answers at that address" in found.message
