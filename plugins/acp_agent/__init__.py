"""An agent for editors with the Agent Client Protocol: `agentsvc acp`, and a WebSocket at `/acp`.

Its sessions are conversations of a server, in sandboxes there. `connection` is the JSON-RPC layer, `updates`
converts events for editors, `agent` implements the methods, `remote` is the WebSocket, off by default.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.remote:RemoteAgent")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
