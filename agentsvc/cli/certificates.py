"""Leaves the certificates of this machine unread until somebody is called by TLS.

The HTTP library makes two contexts when it is imported, and each reads the certificates of all the
authorities this machine trusts. That takes a good part of a start, and many a server only ever
calls on its own machine, without TLS.
"""

import contextlib
import ssl
from collections.abc import Iterator
from typing import Any, Final

_METHOD: Final = "set_default_verify_paths"
_read_now: Final = ssl.SSLContext.set_default_verify_paths


class _Unread(ssl.SSLContext):
    """A context that reads them when it is first used, and is one like any other then."""

    def wrap_bio(self, *args: Any, **kw: Any) -> ssl.SSLObject:
        """Make that by which asyncio speaks TLS."""
        return _read(self).wrap_bio(*args, **kw)

    def wrap_socket(self, *args: Any, **kw: Any) -> ssl.SSLSocket:
        """Make a socket that speaks TLS."""
        return _read(self).wrap_socket(*args, **kw)


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Let contexts that are made in the block read the certificates at their first use."""
    # The method is that of a base; for the length of the block it is hidden by one of ours.
    setattr(ssl.SSLContext, _METHOD, _put_off)
    try:
        yield
    finally:
        delattr(ssl.SSLContext, _METHOD)


def _put_off(context: ssl.SSLContext) -> None:
    context.__class__ = _Unread


def _read(context: ssl.SSLContext) -> ssl.SSLContext:
    # Two threads at once read them twice; none goes on before they are read.
    _read_now(context)
    context.__class__ = ssl.SSLContext
    return context
