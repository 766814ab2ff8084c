"""DNS lookups in a thread pool of their own, of which each proxy uses a few threads.

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
    """The DNS resolver that the proxies of a process share."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="egress-dns")

    async def resolve(self, name: str, slots: asyncio.Semaphore) -> list[Address]:
        """Resolve a name; raises OSError if it has no address.

        A slot is held until the lookup ends, also if nobody waits for it any more.
        """
        await slots.acquire()
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed before the thread ended
                loop.call_soon_threadsafe(slots.release)

        try:
            lookup = self._threads.submit(_look_up, name)
        except BaseException:
            slots.release()
            raise
        lookup.add_done_callback(release)
        return await asyncio.wrap_future(lookup)

    def close(self) -> None:
        """Shut down the threads; those with a running lookup end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> list[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    # An IPv6 address may include its zone, which is not part of the target.
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]
