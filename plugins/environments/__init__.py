"""Prepared environments: the set-up of a repository done once, and copied into each new sandbox.

`preparing` runs the set-up in a sandbox of its own and has its backend keep the files as a layer,
`service` keeps environments and tells starts which one they begin with, `routes` and `commands` are
for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:EnvironmentsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
