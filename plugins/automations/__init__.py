"""Automations: conversations that start on a schedule, by a webhook, or by hand.

A due time or an event becomes a run, a row with a unique key; a run becomes a conversation in the
transaction that creates its start task. `service` manages automations, `scheduler` creates and
starts runs, `follower` ends them, `routes` and `commands` are the interfaces for users.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.extension:AutomationsExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
