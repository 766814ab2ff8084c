"""A process that is what runs in a sandbox: `python -m tests.bench.upstream`."""

import asyncio
import os

from tests.bench.rig import Running, serve_until_told
from tests.http.gateway.upstream import Upstream


async def main() -> None:
    upstream = Upstream()
    await upstream.start()
    try:
        await serve_until_told(Running(pid=os.getpid(), url=upstream.url))
    finally:
        await upstream.stop()


if __name__ == "__main__":
    asyncio.run(main())
