"""Looks names up in threads of its own, of which each proxy takes a few.

A sandbox that asks for slow names fills these threads, not those of the server.
"""

import asyncio
import contextlib
import ipaddress
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from .addresses import Address

_THREADS: Final = 64


class Resolver:
    """What the proxies of one process look names up with."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="egress-dns")

    async def resolve(self, name: str, slots: asyncio.Semaphore) -> list[Address]:
        """Return a name's addresses; raises OSError if it has none.

        A slot is taken until the thread has its answer, also if nobody waits for that any more.
        """
        await slots.acquire()
        loop = asyncio.get_running_loop()

        def give_back(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended before the thread
                loop.call_soon_threadsafe(slots.release)

        try:
            looking = self._threads.submit(_look_up, name)
        except BaseException:
            slots.release()
            raise
        looking.add_done_callback(give_back)
        return await asyncio.wrap_future(looking)

    def close(self) -> None:
        """Let go of the threads; those that wait for an answer end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> list[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    # An address of IPv6 may come with its zone, which is not part of where it leads.
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
