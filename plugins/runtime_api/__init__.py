"""The remote runtime API, `/runtime`: other control planes keep their sandboxes at this server.

It has the shape their clients know, and the sandboxes are the same as everywhere else: decode,
call the core once, encode. Its other side, which starts sandboxes at such a server, is in
`plugins/remote`.
"""

from collections.abc import Iterable

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the API."""
    from .handlers import RuntimeApi  # noqa: PLC0415  # what it imports takes time

    return [RuntimeApi]
