"""Automations: conversations that start on a schedule, by a webhook, or by hand.

What is due becomes a run, a row with a key of its own; a run becomes a conversation in the
transaction that creates its start task. `service` keeps automations, `scheduler` makes and starts
runs, `follower` sees how they end, `routes` and `commands` are for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.extension:AutomationsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
