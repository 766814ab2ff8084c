"""An MCP server at `/mcp`: other agents start, read and control conversations with a user's key.

It has no state between requests, so that clients continue after a restart. `protocol` contains the
messages, `tools` and `resources` what it offers, `routes` the endpoint. The published package is not
used: a server needs little of the protocol, and that package is large.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:McpServer")
