"""Prepared environments: run the set-up of a repository once, and copy it into each new sandbox.

`preparing` runs the set-up in a dedicated sandbox, whose files the backend stores as a layer;
`service` manages environments and selects the one for a start; `routes` and `commands` are
the interfaces for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:EnvironmentsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
