"""Looks names up, a few at a time, in threads of its own.

A sandbox that asks for slow names fills these threads, not those of the server.
"""

import asyncio
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from .addresses import Address

_THREADS: Final = 8


class Resolver:
    """What the proxies of one process look names up with."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="egress-dns")

    async def resolve(self, name: str) -> list[Address]:
        """Return a name's addresses; raises OSError if it has none."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)

    def close(self) -> None:
        """Let go of the threads; those that wait for an answer end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> list[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    # An address of IPv6 may come with its zone, which is not part of where it leads.
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
