"""Checks whether the ports of a sandbox answer."""

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

_STAYS_SECONDS = 0.25


async def answers(urls: Iterable[str], time_limit: float, *, is_relayed: bool) -> bool:
    """Say whether somebody listens at each of the addresses."""
    for url in urls:
        target = urlsplit(url)
        port = target.port or 0
        if not await listens(target.hostname or "", port, time_limit, is_relayed=is_relayed):
            return False
    return True


async def listens(host: str, port: int, time_limit: float, *, is_relayed: bool = False) -> bool:
    """Say whether somebody listens at a port; behind what relays it, if need be."""
    try:
        async with asyncio.timeout(time_limit):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError:  # which TimeoutError is, too
        return False
    try:
        # What relays takes every connection, and ends it at once where nobody is behind it.
        async with asyncio.timeout(min(time_limit, _STAYS_SECONDS)):
            return not is_relayed or bool(await reader.read(1))
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.transport.abort()
