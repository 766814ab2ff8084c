"""Configuration of the MCP server."""

from msgspec import Struct


class McpServerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `mcp_server` section: other agents start and control conversations."""

    enabled: bool = False
    """Serve the Model Context Protocol at /mcp, so that other agents can start and control
    conversations with a user's key"""
