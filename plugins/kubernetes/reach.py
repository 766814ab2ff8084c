"""Checks whether the port of a pod answers."""

import asyncio
from urllib.parse import urlsplit


async def answers(url: str, time_limit: float) -> bool:
    """Return whether the host and port of a URL accept a connection within `time_limit` seconds."""
    target = urlsplit(url)
    try:
        async with asyncio.timeout(time_limit):
            _, writer = await asyncio.open_connection(target.hostname, target.port)
    except OSError:  # which TimeoutError is, too
        return False
    writer.transport.abort()
    return True
