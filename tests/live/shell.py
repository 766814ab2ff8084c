"""Runs what pages have readers run."""

import asyncio
import os
from pathlib import Path


async def shell(code: str, *, cwd: Path | None = None, **environment: str) -> str:
    """Run code as a shell does, which ends with what fails first, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euc", code),
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output = (await process.communicate())[0].decode(errors="replace")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, output
    return output
