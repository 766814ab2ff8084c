"""An agent for editors that speak the Agent Client Protocol: `agentsvc acp`, and a WebSocket at `/acp`.

Its sessions are conversations of a server, in sandboxes there. `connection` has the messages, `updates`
what editors are told of events, `agent` the methods, `remote` the WebSocket, which is off by default.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.remote:RemoteAgent")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
