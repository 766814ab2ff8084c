"""Packets of the event socket: what clients may send, and that everything else is a goodbye."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from socketio import packet

from agentsvc.base.errors import BadRequest
from agentsvc.http.v0.packets import Packet, check_payload, event_packet

GOODBYES = [
    "",
    "x",
    "9",
    "2",
    "2[]",
    "2{}",
    "2[3]",
    '2["connect"]',
    '2["disconnect"]',
    '2["connect_error",{}]',
    '2["x"',
    '2["x",]',
    "2" + "[" * 100_000,
    '2/other,["x"]',
    '51-["x",{"_placeholder":true,"num":0}]',
    "2" + "1" * 200 + '["x"]',
    "3[]",
    "30[]",
    "4{}",
    "6[]",
    "0[]",
    "0/admin,",
    "0{",
    "0" + '{"a":' * 100_000,
    "²",
    "1",
    b"bytes",
    {"a": 1},
]


@pytest.mark.parametrize("text", GOODBYES, ids=range(len(GOODBYES)))
def test_what_nobody_has_a_reason_to_send_is_a_goodbye(text: object) -> None:
    received = Packet(encoded_packet=text)
    assert (received.packet_type, received.data) == (packet.DISCONNECT, None)
    assert (received.namespace, received.id, received.attachment_count) == (None, None, 0)


@given(st.text(max_size=60) | st.from_regex(r"[0-6][0-9]?-?(/\w*,)?[0-9]*[\[{].*", fullmatch=True))
def test_any_text_reads_as_a_packet(text: str) -> None:
    received = Packet(encoded_packet=text)
    assert received.packet_type in (packet.CONNECT, packet.DISCONNECT, packet.EVENT)
    if received.packet_type == packet.EVENT:
        assert isinstance(received.data[0], str)


def test_an_event_leaves_what_is_said_as_it_came() -> None:
    received = Packet(encoded_packet='27["oh_action", {"big": 99999999999999999999999 }, 2]')
    assert (received.packet_type, received.id) == (packet.EVENT, 7)
    name, *said = received.data
    assert name == "oh_action"
    assert [bytes(one) for one in said] == [b'{"big": 99999999999999999999999 }', b"2"]


@pytest.mark.parametrize(("text", "data"), [("0", None), ('0{"token":"x"}', {"token": "x"})])
def test_a_connect_may_bring_something(text: str, data: object) -> None:
    received = Packet(encoded_packet=text)
    assert (received.packet_type, received.data) == (packet.CONNECT, data)


def test_a_frame_is_sent_as_it_is() -> None:
    assert event_packet(b'{"id": 1}') == '2["oh_event",{"id": 1}]'


@pytest.mark.parametrize("body", [b"", b"40", b'42["oh_action",{}]', b"3\x1e40", "4ä".encode()])
def test_packets_are_a_payload(body: bytes) -> None:
    check_payload(body)


@pytest.mark.parametrize(
    "body",
    [b"\xff", b"x", b"d=", b"\x1e", b"b0", b"9", b"1\x1e" * 17 + b"1", b"4" + b"[" * 100_000],
    ids=range(8),
)
def test_what_is_no_payload_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="not a payload"):
        check_payload(body)


def test_a_packet_of_very_many_values_reads_as_a_goodbye() -> None:
    received = Packet(encoded_packet='2["oh_action",' + "[]," * 700_000 + "[]]")
    assert received.packet_type == packet.DISCONNECT


def test_a_payload_of_very_many_values_is_checked_in_little_memory() -> None:
    body = b"4[" + b"[]," * 1_000_000 + b"[]]"
    tracemalloc.start()
    try:
        check_payload(body)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()
