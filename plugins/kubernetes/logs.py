"""Reads and follows the logs of a pod."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from agentsvc.base import BackendUnavailable, OrderRejected
from agentsvc.plugin import LogLine

from .api import Api
from .objects import CONTAINER

_FOLLOW_SECONDS: Final = 0.3
_BEGINNING: Final = datetime.fromtimestamp(0, UTC)


async def read_log(api: Api, path: str, tail: int) -> AsyncIterator[LogLine]:
    """Yield the last `tail` lines; no lines if the pod has not started or is gone."""
    query = {**_QUERY, "tailLines": str(tail)}
    async for line in _lines(api, path, query):
        yield line


async def follow_log(
    api: Api, path: str, tail: int, exists: Callable[[], Awaitable[bool]]
) -> AsyncIterator[LogLine]:
    """Yield the last `tail` lines and then new ones, as long as the sandbox exists."""
    last = _BEGINNING
    query = {**_QUERY, "tailLines": str(tail), "follow": "true"}
    while await exists():
        try:
            async for line in _lines(api, path, query):
                if line.at > last:
                    last = line.at
                    yield line
        except BackendUnavailable:
            # It goes on where it was when the API server is back.
            await asyncio.sleep(_FOLLOW_SECONDS)
        if last > _BEGINNING:
            query = {**_QUERY, "sinceTime": _whole_second(last), "follow": "true"}
        await asyncio.sleep(_FOLLOW_SECONDS)


_QUERY: Final = {"container": CONTAINER, "timestamps": "true"}


async def _lines(api: Api, path: str, query: dict[str, str]) -> AsyncIterator[LogLine]:
    try:
        async with api.stream(path, query) as answer:
            async for line in answer.content:
                yield to_line(line)
    except OrderRejected:
        # There is no pod, or nothing of it has begun.
        return
    except ValueError as exc:
        raise BackendUnavailable("A line of the log is longer than lines may be") from exc


def to_line(line: bytes) -> LogLine:
    """Parse a line that begins with its time; the API does not separate stdout and stderr."""
    stamp, _, text = line.decode(errors="replace").rstrip("\r\n").partition(" ")
    try:
        at = datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        at = _BEGINNING
    return LogLine(at=at, stream="stdout", text=text)


def _whole_second(at: datetime) -> str:
    return at.replace(microsecond=0).strftime("%Y-%m-%dT%H:%M:%SZ")
