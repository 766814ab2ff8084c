"""Shared conversations: links that show one to whoever has them, without a key and read-only.

`links` keeps them, `masking` and `redaction` say what of an event is shown, `page` is a conversation as
one HTML file, `routes` has the API, for readers as published front ends call it.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:Sharing")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
