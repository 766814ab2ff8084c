"""Finds out whether what a process sandbox runs listens at its ports."""

import asyncio
import socket
from typing import Final

from agentsvc.backends import control, launch
from agentsvc.backends.look import Look
from agentsvc.values import monotonic

LOOPBACK: Final = "127.0.0.1"
"""Where ports are that no network of the sandbox's own hides."""

_WAIT_SECONDS: Final = 0.4
_MOMENT_SECONDS: Final = 0.02
_LOOK_SECONDS: Final = 0.01


def is_open(look: Look) -> bool:
    """Say whether something answers at every port that is awaited, as far as that is quickly known.

    It is where the sandbox has no network of its own, and is not busy. Blocks for a moment.
    """
    if look.record is None or not look.record.shares_network:
        return False
    return all(map(_is_open, look.awaited_ports()))


def _is_open(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), _MOMENT_SECONDS).close()
    except OSError:  # which TimeoutError is, too
        return False
    return True


async def answers(look: Look, connect_seconds: float) -> bool:
    """Wait a moment for what listens inside: a fork does within it, and nobody looks again."""
    if look.state is not None and look.state.sockets and look.record is not None:
        path = launch.control_path(look.record.temp)
        try:
            async with asyncio.timeout(connect_seconds + _WAIT_SECONDS):
                return await control.answer(path, look.awaited_ports(), wait_seconds=_WAIT_SECONDS)
        except (OSError, control.BadAnswer):
            return False
    end = monotonic() + _WAIT_SECONDS
    is_open = await _connects(look, connect_seconds)
    while not is_open and monotonic() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        is_open = await _connects(look, connect_seconds)
    return is_open


async def _connects(look: Look, connect_seconds: float) -> bool:
    for port in look.awaited_ports():
        try:
            async with asyncio.timeout(connect_seconds):
                _, writer = await asyncio.open_connection(LOOPBACK, port)
        except OSError:  # which TimeoutError is, too
            return False
        writer.transport.abort()
    return True
