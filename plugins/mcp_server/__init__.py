"""An MCP server at `/mcp`: other agents start, read and steer conversations with a user's key.

It keeps nothing between two requests, so that clients go on after a restart. `protocol` has the
messages, `tools` and `resources` what is offered, `routes` the operation. The published package is not
used: what a server needs of the protocol is small, and that package is not.
"""

from collections.abc import Iterable

from agentsvc.plugin import hookimpl


@hookimpl
def agentsvc_register_extensions() -> Iterable[type]:
    """Offer the server."""
    from .routes import McpServer  # noqa: PLC0415  # what it imports takes time

    return [McpServer]
