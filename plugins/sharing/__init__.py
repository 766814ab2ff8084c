"""Shared conversations: links that give read-only access to a conversation without a key.

`links` stores them, `masking` and `redaction` remove secrets and redacted parts from events, `page` renders
a conversation as one HTML file, `routes` contains the API; its routes for readers are those that published
front ends call.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:Sharing")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
