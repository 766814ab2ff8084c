"""Who comes to a listening socket is let in a few at a time, or is kept outside."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import pytest
from aiohttp import web

from agentsvc.http.connection_limit import ConnectionLimit
from agentsvc.http.door import Door, Outside
from agentsvc.http.measures import Measures
from agentsvc.http.server import make_runner
from tests.service import WAIT_SECONDS

MANY = 40


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen(MANY)
        made.setblocking(False)
        yield made


def door_at(
    listener: socket.socket, *, inside: int = 0, most: int = MANY, most_outside: int = MANY
) -> Door:
    """Return a door to where so many of this address are already."""
    limit = ConnectionLimit(most=2 * MANY, most_of_origin=most, shared=())
    for _ in range(inside):
        limit.enter("127.0.0.1", lambda: None)
    return Door(listener, limit, Measures(), Outside(most_outside))


def come(address: tuple[str, int]) -> socket.socket:
    client = socket.create_connection(address, timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    return client


def let_in(door: Door) -> list[socket.socket]:
    """Take as many as come in one turn of an event loop."""
    inside: list[socket.socket] = []
    with contextlib.suppress(BlockingIOError):
        inside.extend(iter(lambda: door.accept()[0], None))
    return inside


def end(*connections: socket.socket) -> None:
    for one in connections:
        one.close()


def test_clients_come_in_over_several_turns_so_that_others_have_theirs(
    listener: socket.socket,
) -> None:
    address = listener.getsockname()
    with door_at(listener) as door:
        clients = [come(address) for _ in range(10)]
        turns = [let_in(door) for _ in range(6)]
        assert [len(turn) for turn in turns] == [2, 2, 2, 2, 2, 0]
        end(*clients, *(one for turn in turns for one in turn))


async def test_many_may_come_before_anybody_is_let_in(listener: socket.socket) -> None:
    runner = make_runner(web.Application(), grace_seconds=1)
    await runner.setup()
    address = listener.getsockname()
    await runner.listen(listener)
    # The event loop does not turn meanwhile, and who finds no room would not get in.
    end(*(socket.create_connection(address, timeout=0.5) for _ in range(400)))
    await runner.cleanup()


async def test_who_is_one_too_many_is_told_after_a_while_and_beyond_some_at_once(
    listener: socket.socket,
) -> None:
    address = listener.getsockname()
    with door_at(listener, inside=1, most=1, most_outside=1) as door:
        clients = [come(address) for _ in range(2)]
        assert let_in(door) == []
        waits, told = clients
        assert told.recv(100).startswith(b"HTTP/1.1 429 Too Many Requests")
        waits.settimeout(0)
        with pytest.raises(BlockingIOError):
            waits.recv(100)
        async with asyncio.timeout(WAIT_SECONDS):
            later = await asyncio.get_running_loop().sock_recv(waits, 100)
        assert later.startswith(b"HTTP/1.1 429 Too Many Requests")
        end(*clients)


async def test_a_door_that_closes_leaves_nobody_outside(listener: socket.socket) -> None:
    address = listener.getsockname()
    door = door_at(listener, inside=1, most=1)
    clients = [come(address) for _ in range(2)]
    assert let_in(door) == []
    door.close()
    for outside in clients:
        with pytest.raises(ConnectionResetError):
            outside.recv(100)
    end(*clients)
