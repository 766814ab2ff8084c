"""Whose the other end of a connection is, where anybody on the machine may listen."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
from process import peers
from process.tree import Process, Tree, look_up

LISTEN = (
    "import socket; one = socket.create_server(('127.0.0.1', 0));"
    "print(one.getsockname()[1], flush=True); link = one.accept(); input()"
)


class Reused(Tree, frozen=True, kw_only=True):
    """A sandbox whose only process ends while it is looked at; another one has its pid then."""

    looks: list[list[Process]]

    def descendants(self) -> list[Process]:
        return self.looks.pop(0) if self.looks else []


@pytest.fixture
def listener() -> Iterator[tuple[Process, int]]:
    """Return a process that listens, and its port."""
    with subprocess.Popen(
        [sys.executable, "-Ic", LISTEN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = look_up(process.pid)
        assert found is not None
        yield found, port


def test_a_connection_leads_to_the_sandbox_of_the_process_that_accepts_it(
    listener: tuple[Process, int],
) -> None:
    process, port = listener
    with socket.create_connection(("127.0.0.1", port)) as link:
        source = link.getsockname()[1]
        assert peers.is_peer(Tree(mark="own", root=process.identity), port, source)
        assert not peers.is_peer(Tree(mark="ended", root=(process.pid, 1)), port, source)


def test_who_has_the_pid_of_a_process_that_has_ended_is_not_of_its_sandbox(
    listener: tuple[Process, int],
) -> None:
    process, port = listener
    ended = msgspec.structs.replace(process, start=process.start - 1)
    with socket.create_connection(("127.0.0.1", port)) as link:
        source = link.getsockname()[1]
        there = Reused(mark="", looks=[[process], [process]])
        assert peers.is_peer(there, port, source)
        assert not peers.is_peer(Reused(mark="", looks=[[ended], []]), port, source)
