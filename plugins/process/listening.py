"""Checks whether the command of a process sandbox listens on its ports."""

import asyncio
from typing import Final
from urllib.parse import quote

from . import control, launch, peers
from .inspection import Inspection
from .threads import reach, until_none
from .tree import Tree

LOOPBACK: Final = "127.0.0.1"
"""Address of the ports of a sandbox in the host's network."""

_WAIT_SECONDS: Final = 0.4


def is_open(inspection: Inspection, tree: Tree) -> bool:
    """Return whether the sandbox itself listens on every awaited port, in the host's network.

    Blocks briefly.
    """
    if inspection.record is None or not inspection.record.shares_network:
        return False
    return all(peers.listens(tree, port) for port in inspection.awaited_ports())


async def answers(inspection: Inspection, tree: Tree, connect_seconds: float) -> bool:
    """Wait briefly until all awaited ports accept connections; return whether they do.

    A fork listens within that time, so that no second inspection is needed.
    """
    if not inspection.awaited_ports():
        return True
    if inspection.sockets() and inspection.record is not None:
        path = launch.control_path(inspection.record.temp)
        ports = inspection.awaited_ports()
        token = await reach(inspection.folder.read_control_token)
        try:
            async with asyncio.timeout(connect_seconds + _WAIT_SECONDS):
                return await control.answer(path, token, ports, wait_seconds=_WAIT_SECONDS)
        except (OSError, control.BadAnswer):
            return False
    return await until_none(lambda: not is_open(inspection, tree), _WAIT_SECONDS)


def url_of(port: int, socket_path: str | None) -> str:
    """Return the URL of a port: of its Unix socket if it has one."""
    if socket_path is None:
        return f"http://{LOOPBACK}:{port}"
    return f"http+unix://{quote(socket_path, safe='')}"
