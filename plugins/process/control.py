"""Requests to the shim of a process sandbox, or to the process inside it, over a Unix socket.

What answers may be anything that runs in the sandbox: its answers are bounded and checked.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from agentsvc.plugin import ExecResult

_HEAD_MAX: Final = 65536


class BadAnswer(Exception):
    """What came is no answer, or not a whole one."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A command to be run.

    The token is of the sandbox's own state directory: on its socket anybody may call whom no
    bubblewrap keeps from it.
    """

    token: str
    argv: tuple[str, ...]
    env: dict[str, str]
    time_limit: float
    max_output: int


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """How a command ended, and how much of its output follows."""

    exit_code: int | None
    timed_out: bool
    truncated: bool
    stdout: Annotated[int, msgspec.Meta(ge=0)]
    stderr: Annotated[int, msgspec.Meta(ge=0)]


class _Open(msgspec.Struct, frozen=True, kw_only=True):
    """Whether ports answer."""

    open: bool


_head = msgspec.json.Decoder(_Head)
_open = msgspec.json.Decoder(_Open)


async def execute(path: Path, request: Request) -> ExecResult:
    """Have a command run, and return how it ended; raises OSError, BadAnswer."""
    async with _asked(path, request) as reader:
        head = _head.decode(await reader.readuntil(b"\n"))
        if max(head.stdout, head.stderr) > request.max_output:
            raise BadAnswer
        return ExecResult(
            exit_code=head.exit_code,
            timed_out=head.timed_out,
            truncated=head.truncated,
            stdout=await reader.readexactly(head.stdout),
            stderr=await reader.readexactly(head.stderr),
        )


async def answer(path: Path, token: str, ports: Sequence[int], *, wait_seconds: float = 0) -> bool:
    """Say whether something listens at every port inside, as soon as it does within that time.

    Raises OSError, BadAnswer.
    """
    asked = {"token": token, "connect": ports, "wait": wait_seconds}
    async with _asked(path, asked) as reader:
        return _open.decode(await reader.readuntil(b"\n")).open


@contextlib.asynccontextmanager
async def _asked(path: Path, request: object) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_unix_connection(path, limit=_HEAD_MAX)
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        await writer.drain()
        yield reader
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.MsgspecError) as exc:
        raise BadAnswer(str(exc)) from exc
    finally:
        # Hanging up is what ends a command that still runs.
        writer.transport.abort()
