"""Zero-copy transfer between two connections with `splice(2)`; Linux only."""

import asyncio
import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, Protocol

FEWEST_BYTES: Final = 512 * 1024
"""Minimum size of a transfer: for less, the setup costs more than it saves."""

_PIPE_BYTES: Final = 1024 * 1024
_COPIED_BYTES: Final = 64 * 1024
"""Bytes copied to the sink's transport if its socket is full, so that `flush` waits for it."""
_YIELD_BYTES: Final = 4 * 1024 * 1024
"""Bytes after which the loop yields to other tasks."""

if sys.platform == "linux":
    _CAN_SPLICE: Final = True
    _FLAGS: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
else:
    _CAN_SPLICE: Final = False
    _FLAGS: Final = 0


class Sink(Protocol):
    """The receiver of the bytes."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its transport; None if it is disconnected."""

    async def flush(self) -> None:
        """Wait until the write buffer is drained; raises if the connection is lost."""


async def splice(
    source: asyncio.Transport | None, sink: Sink, count: int, on_taken: Callable[[int], None]
) -> None:
    """Transfer up to `count` bytes, and call `on_taken` with the size of each part.

    Returns early at the end of the source, if one side fails, or if splicing is impossible: the
    caller then reads the source as usual, which also raises its error. Meanwhile the transport does
    not read the source, and nothing else may be written to the sink.
    """
    target = sink.transport
    if count < FEWEST_BYTES or source is None or target is None:
        return
    with contextlib.suppress(OSError), _open(source, target) as pipe:
        source.pause_reading()
        # Makes `flush` wait for an empty buffer, which spliced bytes must not overtake.
        target.set_write_buffer_limits(high=0)
        try:
            await _move(pipe, sink, count, on_taken)
        finally:
            target.set_write_buffer_limits()
            source.resume_reading()


class _Pipe:
    """A pipe between two sockets."""

    def __init__(self, source: int, target: int, pipe: tuple[int, int]) -> None:
        self._source = source
        self._target = target
        self._end, self._entry = pipe
        self.is_open = True
        """Whether the target still accepts spliced bytes."""

    def fill(self, count: int) -> int | None:
        """Fill the pipe from the source; returns the size, 0 at the end, None without data."""
        try:
            return os.splice(self._source, self._entry, min(count, _PIPE_BYTES), flags=_FLAGS)
        except BlockingIOError:
            return None

    def drain(self, count: int) -> int:
        """Drain the pipe into the target; returns how many bytes the target did not accept."""
        try:
            while count and self.is_open:
                given = os.splice(self._end, self._target, count, flags=_FLAGS)
                count -= given
                self.is_open = given > 0
        except BlockingIOError:
            pass
        except OSError:
            self.is_open = False
        return count

    def read(self, count: int) -> bytes:
        """Read bytes from the pipe."""
        return os.read(self._end, count)

    async def wait(self) -> None:
        """Wait until the source is readable."""
        loop = asyncio.get_running_loop()
        there = loop.create_future()
        loop.add_reader(self._source, _set, there)
        try:
            await there
        finally:
            loop.remove_reader(self._source)


async def _move(pipe: _Pipe, sink: Sink, left: int, on_taken: Callable[[int], None]) -> None:
    since_yield = piped = 0
    while piped or (left and pipe.is_open):
        await sink.flush()
        target = sink.transport
        if target is None or target.is_closing():
            return
        if not piped:
            count = pipe.fill(left)
            if count is None:
                since_yield = 0
                await pipe.wait()
                continue
            if not count:
                return
            piped = count
            left -= count
            since_yield += count
            on_taken(count)
        piped = pipe.drain(piped)
        if piped:
            copied = pipe.read(min(piped, _COPIED_BYTES) if pipe.is_open else piped)
            piped -= len(copied)
            target.write(copied)
        elif since_yield > _YIELD_BYTES:
            since_yield = 0
            await asyncio.sleep(0)


@contextlib.contextmanager
def _open(source: asyncio.Transport, target: asyncio.Transport) -> Iterator[_Pipe]:
    """Duplicate both sockets' file descriptors, which stay valid if the connections close.

    Raises OSError if a transport has no plain socket.
    """
    with contextlib.ExitStack() as stack:
        fds = []
        for transport in (source, target):
            found = transport.get_extra_info("socket")
            if not _CAN_SPLICE or found is None or transport.get_extra_info("sslcontext"):
                raise OSError("the transport has no plain socket")
            fds.append(os.dup(found.fileno()))
            stack.callback(os.close, fds[-1])
        pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for end in pipe:
            stack.callback(os.close, end)
        # Fails if the user's pipe limit is used up: the pipe stays small, which is only slower.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        yield _Pipe(fds[0], fds[1], pipe)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
