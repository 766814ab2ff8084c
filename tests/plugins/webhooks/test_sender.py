"""Requests to receivers: which address they go to, and what ends them."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from agentsvc.agentserver.safe_connector import Found
from tests.plugin_loading import part
from tests.receivers import Receiver

if TYPE_CHECKING:
    from webhooks.sender import DeliveryResult, Sender
else:
    DeliveryResult = part("webhooks.sender").DeliveryResult
    Sender = part("webhooks.sender").Sender

LOOPBACK = "127.0.0.1"


class Names:
    """Names that lead to other addresses each time they are asked for."""

    def __init__(self, *answers: str | list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def look_up(self, host: str, port: int) -> Found:
        del port
        self.asked.append(host)
        answer = self._answers.pop(0)
        some = [answer] if isinstance(answer, str) else answer
        return [(int(socket.AF_INET6 if ":" in one else socket.AF_INET), one) for one in some]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def send(
    names: Names, url: str, *, allows_private: bool = True, time_limit: float = 20
) -> DeliveryResult:
    sender = Sender(
        time_limit=time_limit, allows_private=allows_private, most=4, lookup=names.look_up
    )
    try:
        return await sender.send(url, b"{}", {"webhook-id": "m"})
    finally:
        await sender.close()
        await sender.close()


async def test_a_name_is_resolved_once_and_the_connection_goes_to_that_address(
    receiver: Receiver,
) -> None:
    names = Names(LOOPBACK, "192.0.2.1")
    outcome = await send(names, f"http://receiver.example:{receiver.port}/hook")
    assert outcome == DeliveryResult(is_delivered=True, status=200)
    assert names.asked == ["receiver.example"]
    assert receiver.received[0].headers["Host"] == f"receiver.example:{receiver.port}"


@pytest.mark.parametrize(
    "addresses",
    [LOOPBACK, ["93.184.216.34", LOOPBACK], "10.0.0.1", "169.254.169.254", "::1", "fe80::1%lo"],
)
async def test_a_name_that_leads_inside_is_not_connected_to(
    receiver: Receiver, addresses: str | list[str]
) -> None:
    url = f"http://receiver.example:{receiver.port}/hook"
    outcome = await send(Names(addresses), url, allows_private=False)
    assert outcome == DeliveryResult(
        is_delivered=False, reason="the name leads to an address that is not public"
    )
    assert receiver.received == []


@pytest.mark.parametrize(
    "host", [LOOPBACK, "2130706433", "localhost", "0x7f.1", "0177.0.0.1", "127.0.0.1."]
)
async def test_an_address_inside_is_not_connected_to(receiver: Receiver, host: str) -> None:
    names = Names()
    outcome = await send(names, f"http://{host}:{receiver.port}/", allows_private=False)
    assert outcome.reason == "The host should be a public address: the operator allows no other"
    assert (names.asked, receiver.received) == ([], [])


@pytest.mark.parametrize(
    "addresses",
    ["::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "2001:0:7f00:1::"],
)
async def test_an_address_that_stands_for_one_inside_is_not_connected_to(addresses: str) -> None:
    outcome = await send(Names(addresses), "http://receiver.example/", allows_private=False)
    assert outcome.reason == "the name leads to an address that is not public"


async def test_each_connection_asks_for_the_name_anew(receiver: Receiver) -> None:
    """A name that leads inside by now is not connected to, though it was good before."""
    names = Names(LOOPBACK, "10.0.0.1")
    sender = Sender(time_limit=20, allows_private=True, most=4, lookup=names.look_up)
    strict = Sender(time_limit=20, allows_private=False, most=4, lookup=names.look_up)
    url = f"http://receiver.example:{receiver.port}/hook"
    try:
        assert (await sender.send(url, b"{}", {})).is_delivered
        assert not (await strict.send(url, b"{}", {})).is_delivered
    finally:
        await sender.close()
        await strict.close()
    assert len(receiver.received) == 1


async def test_a_receiver_that_never_answers_is_left() -> None:
    waiting = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hang, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        outcome = await send(Names(), f"http://{LOOPBACK}:{port}/", time_limit=1)
    assert waiting.is_set()
    assert outcome.reason == "the receiver took too long to answer"


async def test_a_receiver_that_speaks_something_else_is_a_failure() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"SSH-2.0-x\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(babble, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        outcome = await send(Names(), f"http://{LOOPBACK}:{port}/")
    assert not outcome.is_delivered
    assert outcome.reason.startswith("the receiver cannot be reached: ")


async def test_a_name_without_an_address_is_a_failure() -> None:
    outcome = await send(Names([]), "http://receiver.example/")
    assert outcome.reason == "the receiver cannot be reached: the name has no address"
