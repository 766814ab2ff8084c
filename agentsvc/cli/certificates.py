"""Defers loading the trusted certificates until the first TLS connection.

The HTTP library creates two SSL contexts on import, and each loads all trusted certificate
authorities. That takes a considerable part of the startup time, and many servers never use TLS for
outgoing connections.
"""

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any, Final

_METHOD: Final = "set_default_verify_paths"
_load_certificates: Final = ssl.SSLContext.set_default_verify_paths


class _DeferredContext(ssl.SSLContext):
    """A context that loads the certificates on first use, and becomes a plain SSLContext."""

    def wrap_bio(self, *args: Any, **kw: Any) -> ssl.SSLObject:
        """Return the TLS object that asyncio uses."""
        return _load(self).wrap_bio(*args, **kw)

    def wrap_socket(self, *args: Any, **kw: Any) -> ssl.SSLSocket:
        """Return a TLS socket."""
        return _load(self).wrap_socket(*args, **kw)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Defer loading certificates for SSL contexts that are created inside the context manager."""
    # The method is inherited; inside the block ours shadows it, and `delattr` restores it.
    setattr(ssl.SSLContext, _METHOD, _defer)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, _METHOD)


def _defer(context: ssl.SSLContext) -> None:
    context.__class__ = _DeferredContext


def _load(context: ssl.SSLContext) -> ssl.SSLContext:
    # Two threads may load them twice, but neither continues before they are loaded.
    _load_certificates(context)
    context.__class__ = ssl.SSLContext
    return context
