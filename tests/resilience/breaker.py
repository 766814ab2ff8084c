"""Ends, stops and freezes what a real server consists of, and cuts its connections, by chance."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp

from tests.live.installation import command_line
from tests.resilience.real import RealServer

_FAILURES: Final = (aiohttp.ClientError, OSError, TimeoutError, AssertionError)
_GET_DESCRIPTOR: Final = 438
"""The number of pidfd_getfd(2), which is the same on every machine."""


class Breaker:
    """Breaks a server and its sandboxes now and again, and brings back what does not come back."""

    def __init__(
        self, chance: random.Random, server: RealServer, faults: Counter[str], *, is_small: bool
    ) -> None:
        """Count what is done in `faults`; what takes long to come back is left alone if small."""
        self._chance = chance
        self._server = server
        self._faults = faults
        self._sandboxes: list[str] = []
        self._whole = asyncio.Lock()
        ways = (self._kill_server, self._stop_server, self._freeze, self._cut)
        # A server that starts again takes a second, an agent server ten times that.
        self._ways = ways if is_small else (*ways, self._kill_agent, self._kill_any)
        self._weights = (5, 4, 3, 4, 2, 1)[: len(self._ways)]

    def add(self, sandbox_id: str) -> None:
        self._sandboxes.append(sandbox_id)

    async def go_on(self, told: Callable[[], int], *, each: int, first: int) -> None:
        """Do something bad now and again, as more is told: at first, and for about each so many."""
        await once(lambda: told() >= first)
        while True:
            await asyncio.sleep(self._chance.uniform(0.0, 1.0))
            [way] = self._chance.choices(self._ways, self._weights)
            async with self._whole:
                await way()
            until = told() + self._chance.randint(1, 2 * each)
            await once(partial(_is_at_least, told, until))

    async def end(self) -> None:
        """Return once nothing that was ended is still down."""
        await self._whole.acquire()

    async def keep_running(self) -> None:
        """Resume each sandbox that has failed, as its user would."""
        while True:
            for sandbox_id in self._sandboxes:
                with contextlib.suppress(*_FAILURES):
                    seen = await self._server.client.sandbox(sandbox_id)
                    if seen is not None and seen["status"] in ("ERROR", "PAUSED"):
                        await self._server.client.post(f"/api/v1/sandboxes/{sandbox_id}/resume")
            await asyncio.sleep(0.5)

    async def _kill_server(self) -> None:
        self._faults["kills of the server"] += 1
        await self._server.installation.kill()
        await self._server.installation.start()

    async def _stop_server(self) -> None:
        self._faults["stops of the server"] += 1
        await self._server.installation.stop()
        await self._server.installation.start()

    async def _kill_agent(self) -> None:
        pids = self._server.installation.agent_servers(self._chance.choice(self._sandboxes))
        self._signal("kills of agent servers", pids, signal.SIGKILL)

    async def _kill_any(self) -> None:
        """End one of what holds a sandbox, or passes on its connections."""
        processes = self._server.installation.processes(self._chance.choice(self._sandboxes))
        pids = [one.pid for one in processes if b"agentsvc" in command_line(one.pid)]
        if pids:
            self._signal(
                "kills of what holds a sandbox", [self._chance.choice(pids)], signal.SIGKILL
            )

    async def _freeze(self) -> None:
        pids = self._server.installation.agent_servers(self._chance.choice(self._sandboxes))
        self._signal("frozen agent servers", pids, signal.SIGSTOP)
        if self._chance.random() < 0.5:
            await self._kill_server()
        await asyncio.sleep(self._chance.uniform(0.2, 2.0))
        for pid in pids:
            _send(pid, signal.SIGCONT)

    async def _cut(self) -> None:
        """Cut connections of the server, to its clients and to agent servers, for a moment."""
        end = asyncio.get_running_loop().time() + self._chance.uniform(0.0, 1.0)
        while True:
            cut = cut_connections(self._server.installation.pid, self._chance)
            self._faults["connections of the server cut"] += cut
            if asyncio.get_running_loop().time() >= end:
                return
            await asyncio.sleep(0.01)

    def _signal(self, what: str, pids: Iterable[int], number: signal.Signals) -> None:
        self._faults[what] += 1
        for pid in pids:
            _send(pid, number)


def cut_connections(pid: int, chance: random.Random) -> int:
    """End about half of the connections of a process on both sides; return how many.

    The process is one of our own children.
    """
    cut = 0
    for connection in _connections(pid):
        with connection:
            if chance.random() < 0.5:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    cut += 1
    return cut


def _connections(pid: int) -> Iterable[socket.socket]:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        process = os.pidfd_open(pid)
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208  # names are enough
    except OSError:
        return
    try:
        for name in names:
            with contextlib.suppress(OSError):
                if not str(Path(f"/proc/{pid}/fd/{name}").readlink()).startswith("socket:"):
                    continue
                found = libc.syscall(_GET_DESCRIPTOR, process, int(name), 0)
                if found < 0:
                    continue
                connection = socket.socket(fileno=found)
                if _is_connection(connection):
                    yield connection
                else:
                    connection.close()
    finally:
        os.close(process)


def _is_connection(one: socket.socket) -> bool:
    """Whether a socket leads to another process: an end of a pair, as loops have, has no name."""
    try:
        return bool(one.getpeername()) or bool(one.getsockname())
    except OSError:
        return False


async def once(is_so: Callable[[], bool]) -> None:
    """Wait for something that tells nobody."""
    for pause in itertools.repeat(0.1):
        if is_so():
            return
        await asyncio.sleep(pause)


def _is_at_least(count: Callable[[], int], least: int) -> bool:
    return count() >= least


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
