"""What an operator can set for the MCP server."""

from typing import Annotated

from msgspec import Meta, Struct


class McpServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `mcp_server` section: other agents start and steer conversations."""

    enabled: Annotated[
        bool,
        Meta(
            description="Serve the Model Context Protocol at /mcp, so that other agents can start and"
            " steer conversations with a user's key"
        ),
    ] = False
