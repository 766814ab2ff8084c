"""The callback addresses of sandboxes, which stay valid after the server has moved to another port.

A sandbox knows only the address it was started with, to which it reports events and from which it
requests secrets. As long as sandboxes exist, the server also listens on its former addresses.
"""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from socket import socket
from typing import Final
from urllib.parse import urlsplit

from agentsvc.base import StartFailed, replace_private
from agentsvc.cli.listener import bind

log = logging.getLogger(__name__)

type Address = tuple[str, int]

_MAX: Final = 8


def address_of(url: str) -> Address:
    """Return the host and port of the server's URL."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


def remember(file: Path, current: Address, *, has_sandboxes: bool) -> list[Address]:
    """Return the former addresses that sandboxes may use, and store the current one.

    A write error is only logged; a later start on another port then lacks the current address.
    """
    known = _read(file) if has_sandboxes else []
    former = [address for address in known if address != current][: _MAX - 1]
    text = "".join(f"{host} {port}\n" for host, port in [current, *former])
    try:
        replace_private(file, text)
    except OSError as exc:
        log.warning("server address not written to the data directory", extra={"reason": str(exc)})
    return former


@contextlib.contextmanager
def bound(wanted: Sequence[Address]) -> Iterator[list[socket]]:
    """Listen on these addresses inside the context; log those that are not available."""
    with contextlib.ExitStack() as held:
        listeners = []
        for host, port in wanted:
            try:
                listener = held.enter_context(bind(host, port))
                listener.listen()
            except (StartFailed, OSError) as exc:
                log.warning(
                    "running sandboxes cannot reach the server: start it on its former port",
                    extra={"port": port, "reason": str(exc)},
                )
            else:
                listeners.append(listener)
                log.info(
                    "listening on the former port for running sandboxes",
                    extra={"port": port},
                )
        yield listeners


def _read(file: Path) -> list[Address]:
    found: list[Address] = []
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            host, port = line.split()
            if 0 < int(port) < 2**16:
                found.append((host, int(port)))
    return found
