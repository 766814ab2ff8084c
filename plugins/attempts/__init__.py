"""Attempts: one task given to several agents at once, compared, and one of them gone on with.

Each attempt is a conversation in a sandbox of its own, a fork or a new one. `service` keeps the sets,
`runner` takes each attempt from its start to its end, `measuring` says what it has changed and how its
tests end, `routes` and `commands` are for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:AttemptsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
