"""Finds the process that listens on a local port, and the peer of a local connection.

The kernel's socket tables list each socket by its inode, and so do the descriptors of the processes
that have it open. Blocks briefly; call it from a thread.
"""

import contextlib
import os
import time
from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from agentsvc.base import monotonic

from .tree import Tree

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_LOOPBACK: Final = "0100007F"
_IN_IPV6: Final = "0000000000000000FFFF0000" + _LOOPBACK
_AT_LOOPBACK: Final = (_LOOPBACK, _IN_IPV6)
_LISTENING_THERE: Final = (*_AT_LOOPBACK, "0" * 8, "0" * 32)
_ACCEPT_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.005


class _Socket(msgspec.Struct, frozen=True):
    local: str
    port: int
    remote: str
    remote_port: int
    state: str
    inode: str


def listens(tree: Tree, port: int) -> bool:
    """Return whether the sandbox, and nothing else, listens on a loopback port."""
    found = _listeners(_sockets(port), port)
    return bool(found) and found <= _socket_inodes(tree)


def is_peer(tree: Tree, port: int, source_port: int) -> bool:
    """Return whether our connection from `source_port` to a loopback port ends in the sandbox.

    A connection that is not accepted yet belongs to the listener, and is closed with it.
    """
    end = monotonic() + _ACCEPT_SECONDS
    while True:
        lines = list(_sockets(port))
        inode = _peer(lines, port, source_port)
        if inode is None:
            return False
        if inode != "0":
            return inode in _socket_inodes(tree)
        found = _listeners(lines, port)
        if found and found <= _socket_inodes(tree):
            return True
        if monotonic() > end:
            return False
        time.sleep(_POLL_SECONDS)


def _peer(lines: Collection[_Socket], port: int, source_port: int) -> str | None:
    for line in lines:
        is_ours = line.remote_port == source_port and line.remote in _AT_LOOPBACK
        if is_ours and line.port == port and line.local in _AT_LOOPBACK:
            return line.inode
    return None


def _listeners(lines: Collection[_Socket] | Iterator[_Socket], port: int) -> set[str]:
    return {
        line.inode
        for line in lines
        if line.state == _LISTENING and line.port == port and line.local in _LISTENING_THERE
    }


def _sockets(port: int) -> Iterator[_Socket]:
    """Yield the lines of the socket tables that mention a port."""
    wanted = f":{port:04X} "
    for table in _TABLES:
        with contextlib.suppress(FileNotFoundError), open(table) as file:  # noqa: PTH123  # may be long
            for text in file:
                if wanted in text:
                    yield _parsed(text.split())


def _parsed(fields: list[str]) -> _Socket:
    local, _, port = fields[1].partition(":")
    remote, _, remote_port = fields[2].partition(":")
    return _Socket(local, int(port, 16), remote, int(remote_port, 16), fields[3], fields[9])


def _socket_inodes(tree: Tree) -> set[str]:
    """Return the inodes of all sockets that the sandbox's processes have open."""
    found = {process.identity: _sockets_of(process.pid) for process in tree.descendants()}
    # Drop processes that have ended: their pid may belong to another process by now.
    there = {process.identity for process in tree.descendants()}
    return {inode for identity, inodes in found.items() if identity in there for inode in inodes}


def _sockets_of(pid: int) -> set[str]:
    found = set()
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208  # names are enough
            with contextlib.suppress(OSError):
                target = os.readlink(f"{folder}/{name}")  # noqa: PTH115  # many of them
                if target.startswith("socket:["):
                    found.add(target[8:-1])
    return found
