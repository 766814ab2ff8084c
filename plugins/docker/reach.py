"""Checks whether the ports of a sandbox accept connections."""

import asyncio
from collections.abc import Iterable
from urllib.parse import urlsplit

_STAYS_SECONDS = 0.25


async def answers(urls: Iterable[str], time_limit: float, *, is_relayed: bool) -> bool:
    """Return whether all the URLs accept connections."""
    for url in urls:
        target = urlsplit(url)
        port = target.port or 0
        if not await listens(target.hostname or "", port, time_limit, is_relayed=is_relayed):
            return False
    return True


async def listens(host: str, port: int, time_limit: float, *, is_relayed: bool = False) -> bool:
    """Return whether a port accepts connections; through a relay if `is_relayed`."""
    try:
        async with asyncio.timeout(time_limit):
            reader, writer = await asyncio.open_connection(host, port)
    except OSError:  # includes TimeoutError
        return False
    try:
        # A relay accepts every connection, and closes it at once if nothing listens behind it.
        async with asyncio.timeout(min(time_limit, _STAYS_SECONDS)):
            return not is_relayed or bool(await reader.read(1))
    except TimeoutError:
        return True
    except OSError:
        return False
    finally:
        writer.transport.abort()
