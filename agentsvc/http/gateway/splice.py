"""Bytes from one connection to another inside the kernel, where that can be (Linux): not copied here."""

import asyncio
import contextlib
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from typing import Final, Protocol

FEWEST_BYTES: Final = 512 * 1024
"""For less than this the preparations cost more than they spare."""

_PIPE_BYTES: Final = 1024 * 1024
_WAITING_BYTES: Final = 64 * 1024
"""How much of what the sink does not take now is copied, so that its connection waits for it."""
_TURN_BYTES: Final = 4 * 1024 * 1024
"""After this much the others have a turn."""

if sys.platform == "linux":
    _CAN_SPLICE: Final = True
    _FLAGS: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
else:
    _CAN_SPLICE: Final = False
    _FLAGS: Final = 0


class Sink(Protocol):
    """Where the bytes go."""

    @property
    def transport(self) -> asyncio.Transport | None:
        """Its connection, if it still has one."""

    async def flush(self) -> None:
        """Wait until what was written is on its way; fails when it never will be."""


async def splice(
    source: asyncio.Transport | None, sink: Sink, count: int, on_taken: Callable[[int], None]
) -> None:
    """Move up to this many bytes, and call `on_taken` with how many each time some were.

    It returns early when the source has ended, when one side fails, and where this way is not open:
    then the source is to be read as usual, which also tells what is wrong. Meanwhile it is not read
    in any other way, and nothing else may be written to the sink.
    """
    target = sink.transport
    if count < FEWEST_BYTES or source is None or target is None:
        return
    with contextlib.suppress(OSError), _open(source, target) as way:
        source.pause_reading()
        # So `flush` returns only when nothing waits: what is spliced may not overtake it.
        target.set_write_buffer_limits(high=0)
        try:
            await _move(way, sink, count, on_taken)
        finally:
            target.set_write_buffer_limits()
            source.resume_reading()


class _Way:
    """Two sockets and the pipe between them; what is in it is lost with it."""

    def __init__(self, source: int, target: int, pipe: tuple[int, int]) -> None:
        self._source = source
        self._target = target
        self._end, self._entry = pipe
        self.is_open = True
        """Whether what is taken can be given on in this way."""

    def take(self, count: int) -> int | None:
        """Take what is there of the source: nothing at its end, None when it has to come yet."""
        try:
            return os.splice(self._source, self._entry, min(count, _PIPE_BYTES), flags=_FLAGS)
        except BlockingIOError:
            return None

    def give(self, count: int) -> int:
        """Put what is in the pipe into the target, and return how much it does not take now."""
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
        """Return what is in the pipe."""
        return os.read(self._end, count)

    async def wait(self) -> None:
        """Wait until there is something to take."""
        loop = asyncio.get_running_loop()
        there = loop.create_future()
        loop.add_reader(self._source, _set, there)
        try:
            await there
        finally:
            loop.remove_reader(self._source)


async def _move(way: _Way, sink: Sink, left: int, on_taken: Callable[[int], None]) -> None:
    turn = held = 0
    while held or (left and way.is_open):
        await sink.flush()
        target = sink.transport
        if target is None or target.is_closing():
            return
        if not held:
            taken = way.take(left)
            if taken is None:
                turn = 0
                await way.wait()
                continue
            if not taken:
                return
            held = taken
            left -= taken
            turn += taken
            on_taken(taken)
        held = way.give(held)
        if held:
            waiting = way.read(min(held, _WAITING_BYTES) if way.is_open else held)
            held -= len(waiting)
            target.write(waiting)
        elif turn > _TURN_BYTES:
            turn = 0
            await asyncio.sleep(0)


@contextlib.contextmanager
def _open(source: asyncio.Transport, target: asyncio.Transport) -> Iterator[_Way]:
    """Give both sockets numbers that stay theirs, whatever becomes of the connections.

    Raises OSError where that cannot be.
    """
    with contextlib.ExitStack() as held:
        numbers = []
        for transport in (source, target):
            found = transport.get_extra_info("socket")
            if not _CAN_SPLICE or found is None or transport.get_extra_info("sslcontext"):
                raise OSError("there is no socket whose bytes pass as they are")
            numbers.append(os.dup(found.fileno()))
            held.callback(os.close, numbers[-1])
        pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for end in pipe:
            held.callback(os.close, end)
        # Where users have used up their share it stays small, which is slower and no fault.
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        yield _Way(numbers[0], numbers[1], pipe)


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
