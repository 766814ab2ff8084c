"""Binds the socket on which the server listens, with errors that tell what to do."""

import contextlib
import errno
import socket
from typing import Final

from agentsvc.base import StartFailed

_ANY_ADDRESS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # only compared with


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet; raises StartFailed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise _no_address(host) from exc
    # If a name has IPv4 and IPv6 addresses, sandboxes and clients try IPv4 first.
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    try:
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            undo.pop_all()
    except OSError as exc:
        raise cannot_listen(exc, host, port) from exc
    return listener


def cannot_listen(exc: OSError, host: str, port: int) -> StartFailed:
    """Return the error for an address on which the server cannot listen."""
    match exc.errno:
        case errno.EADDRINUSE:
            return StartFailed(
                f"port {port} on {host} is already in use",
                hint=f"stop the program there, or choose another port: --port {port % 65535 + 1}",
            )
        case errno.EACCES:
            return StartFailed(
                f"port {port} on {host} needs privileges that this user does not have",
                hint="choose a port above 1023 with --port",
            )
        case errno.EADDRNOTAVAIL:
            return _no_address(host)
        case _:
            return StartFailed(f"cannot listen on {host}:{port}: {exc.strerror}")


def _no_address(host: str) -> StartFailed:
    hint = "use --host 127.0.0.1, or --host 0.0.0.0 for every address"
    return StartFailed(f"`{host}` is not an address of this machine", hint=hint)


def url_of(listener: socket.socket) -> str:
    """Return the URL of the server on this machine."""
    host, port = listener.getsockname()[:2]
    host = _ANY_ADDRESS.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
