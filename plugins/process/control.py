"""Requests to the shim of a process sandbox, or to the process inside it, over a Unix socket.

The peer may be any program in the sandbox, so its responses are bounded and validated.
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
    """The response is malformed or incomplete."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run.

    The token comes from the sandbox's state directory. Without bubblewrap, any local process may
    connect to the socket.
    """

    token: str
    argv: tuple[str, ...]
    env: dict[str, str]
    time_limit: float
    max_output: int


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """The exit of a command, and the length of the output that follows."""

    exit_code: int | None
    timed_out: bool
    truncated: bool
    stdout: Annotated[int, msgspec.Meta(ge=0)]
    stderr: Annotated[int, msgspec.Meta(ge=0)]


class _Open(msgspec.Struct, frozen=True, kw_only=True):
    """Whether all ports accept connections."""

    open: bool


_head = msgspec.json.Decoder(_Head)
_open = msgspec.json.Decoder(_Open)


async def execute(path: Path, request: Request) -> ExecResult:
    """Run a command and return its result; raises OSError, BadAnswer."""
    async with _send_request(path, request) as reader:
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
    """Wait up to `wait_seconds` for all ports inside to accept connections; return whether they do.

    Raises OSError, BadAnswer.
    """
    asked = {"token": token, "connect": ports, "wait": wait_seconds}
    async with _send_request(path, asked) as reader:
        return _open.decode(await reader.readuntil(b"\n")).open


@contextlib.asynccontextmanager
async def _send_request(path: Path, request: object) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_unix_connection(path, limit=_HEAD_MAX)
    try:
        writer.write(msgspec.json.encode(request) + b"\n")
        await writer.drain()
        yield reader
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.MsgspecError) as exc:
        raise BadAnswer(str(exc)) from exc
    finally:
        # Closing the connection ends a command that still runs.
        writer.transport.abort()
