"""Bodies with very many values: checked in little memory, while others have their turn."""

import asyncio
import threading
import tracemalloc

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request

from agentsvc.base import convert
from agentsvc.base.errors import InvalidRequest
from agentsvc.http.v1.types_agent_settings import MAX_VALUES
from agentsvc.http.wire import BODY, check_extremes, read_json
from tests.service import Client

BRACKETS = b"[" + b",".join([b"[]"] * 300) + b"]"
TEXTS = b"[" + b",".join([rb'"a,[\\\"{99999999999999999999"'] * 20_000) + b"]"


def nested(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def test_what_is_in_strings_counts_for_nothing_in_a_large_body() -> None:
    check_extremes(b"[" + TEXTS + b',{"a":' + nested(150) + b"}," + TEXTS + b"]")


@pytest.mark.parametrize("value", [nested(250), b"9223372036854775808"])
def test_what_is_extreme_is_found_far_inside_of_a_large_body(value: bytes) -> None:
    with pytest.raises(InvalidRequest):
        check_extremes(b"[" + TEXTS + b"," + BRACKETS + b"," + value + b"," + TEXTS + b"]")


def test_a_body_of_very_many_strings_is_checked_in_little_memory() -> None:
    body = b"[" + b'"a",' * 500_000 + BRACKETS + b"]"
    tracemalloc.start()
    try:
        check_extremes(body, wide_integers=True)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("spaces", range(2**16 - 22, 2**16, 3))
def test_what_is_extreme_is_found_where_one_part_ends_and_the_next_begins(spaces: int) -> None:
    with pytest.raises(InvalidRequest):
        check_extremes(b"[" + b" " * spaces + b"9223372036854775808]")


async def test_a_body_of_very_many_values_is_refused_in_little_memory() -> None:
    request = make_mocked_request("POST", "/", headers={"Content-Type": "application/json"})
    request[BODY] = body = b"[" + b"{}," * 1_000_000 + b"{}]"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="too many values"):
            await read_json(request, list[msgspec.Raw])
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
    finally:
        tracemalloc.stop()


async def test_others_have_their_turn_while_a_large_body_is_checked() -> None:
    body = b"[" + b"[]," * 300_000 + b"[]]"
    request = make_mocked_request("POST", "/", headers={"Content-Type": "application/json"})
    request[BODY] = body
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read_json(request, msgspec.Raw))
        await asyncio.sleep(0)
        assert not reading.done()
    assert bytes(reading.result()) == body


class Told(msgspec.Struct):
    thread: threading.Thread
    text: str


@pytest.mark.parametrize(("length", "keeps_loop"), [(1000, True), (1_000_000, False)])
async def test_a_large_body_is_decoded_while_others_have_their_turn(
    length: int, keeps_loop: bool
) -> None:
    decoder = msgspec.json.Decoder(Told, dec_hook=lambda *_: threading.current_thread())
    request = make_mocked_request("POST", "/", headers={"Content-Type": "application/json"})
    request[BODY] = b'{"thread":"","text":"' + b"," * length + b'"}'
    told = await read_json(request, decoder)
    assert (told.thread is threading.current_thread()) == keeps_loop


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("settings", "agent_settings_diff"),
        ("settings", "conversation_settings_diff"),
        ("settings", "mcp_config"),
        ("settings/profiles/x", "llm"),
        ("secrets/git-providers", "mcp_config"),
    ],
)
async def test_a_change_of_settings_with_very_many_values_is_refused(
    client: Client, path: str, name: str
) -> None:
    many = {"many": list(range(MAX_VALUES))}
    answer = await client.post(f"/api/v1/{path}", json={name: many})
    [problem] = answer.json()["detail"]
    assert (answer.status, problem["type"]) == (422, "too_many_values")
    assert problem["loc"] == ["body", name]


class Few(msgspec.Struct, forbid_unknown_fields=True):
    known: int = 0


def test_of_very_many_unknown_fields_the_first_are_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert({str(number): number for number in range(10_000)}, Few, loc=())
    assert not caught.value.is_all
    assert 100 <= len(caught.value.problems) < 10_000
