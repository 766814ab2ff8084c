"""Debian's browser, as tests have it show a page."""

import asyncio
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.live.conftest import unavailable

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def installed() -> str:
    """Return the program that runs it; skips the test where there is none."""
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        unavailable("there is no chromium")
    return str(Path(__file__).with_name("steady_chromium.py"))


@asynccontextmanager
async def showing(url: str, *flags: str, output: int = DEVNULL) -> AsyncIterator[Process]:
    """Have a browser of its own show a page, and end it with all of its processes."""
    program = installed()
    # It makes sockets in the temporary directory, whose names may not be long, and leaves them there.
    with TemporaryDirectory(prefix="asvc-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        process = await asyncio.create_subprocess_exec(
            *(program, *FLAGS, *flags, f"--user-data-dir={directory}/profile", url),
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": directory},
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
