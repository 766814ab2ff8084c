"""Has the agent server's HTTP library read once whom it trusts, not for each client that it makes.

The agent server makes a client for each report, and reading a hundred and fifty certificates takes
longer than all the rest of it. Standard library alone; where there is no such library, or it has
another shape, nothing is changed.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any, Final

_TRANSPORTS: Final = "httpx._transports.default"
_MAKER: Final = "create_ssl_context"
_FILE: Final = "SSL_CERT_FILE"
_DIRECTORY: Final = "SSL_CERT_DIR"
_KEY_LOG: Final = "SSLKEYLOGFILE"
_KNOWN: Final = frozenset({"verify", "cert", "trust_env"})


def settle_here() -> None:
    """Have one context of TLS serve all clients that trust what is trusted by default."""
    transports: Any = sys.modules.get(_TRANSPORTS)
    make = getattr(transports, _MAKER, None)
    if make is not None and not isinstance(make, _Shared):
        setattr(transports, _MAKER, _Shared(make))


def settle_ahead() -> None:
    """Do that in a process whose forks make the clients, and read it for all of them."""
    settle_here()
    if (transports := sys.modules.get(_TRANSPORTS)) is not None:
        with contextlib.suppress(OSError):  # a fork may find what it asks for
            getattr(transports, _MAKER)()


class _Shared:
    """Makes a context, or gives that which was made of the same files."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._known: dict[tuple[object, ...], Any] = {}

    def __call__(self, *args: Any, **named: Any) -> Any:
        asks = named.get("trust_env", True)
        file = os.environ.get(_FILE) if asks else None
        if not _is_usual(args, named) or (asks and not file and os.environ.get(_DIRECTORY)):
            return self._make(*args, **named)
        file = file or _default_file()
        key = (asks, file, _changed_at(file), os.environ.get(_KEY_LOG))
        made = self._known.get(key)
        if made is None:
            made = self._known[key] = self._make(**named)
        return made


def _is_usual(args: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a client trusts what is trusted by default, and asks for nothing that is not known here."""
    is_known = not args and named.keys() <= _KNOWN
    return is_known and named.get("verify", True) is True and named.get("cert") is None


def _default_file() -> str:
    with contextlib.suppress(ImportError):
        return str(importlib.import_module("certifi").where())
    return ""


def _changed_at(file: str) -> int:
    with contextlib.suppress(OSError):
        return os.stat(file).st_mtime_ns  # noqa: PTH116  # a path object is of no use here
    return 0
