"""Attempts: one task for several agents at once, to compare the results and continue with one.

Each attempt is a conversation in its own sandbox, a fork or a new one. `service` manages the sets of
attempts, `runner` advances each attempt from its start to its end, `measuring` counts its changes,
`routes` and `commands` are the interfaces for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:AttemptsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
