"""An MCP server at `/mcp`: other agents start, read and steer conversations with a user's key.

It keeps nothing between two requests, so that clients go on after a restart. `protocol` has the
messages, `tools` and `resources` what is offered, `routes` the operation. The published package is not
used: what a server needs of the protocol is small, and that package is not.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:McpServer")
