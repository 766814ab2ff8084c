"""Outgoing webhooks: who wants to be told of what, and telling it, signed, in order, at least once.

What is to be told is noted by triggers of the database, in the transaction that makes it true; the
rows of the queue name stored events and hold no copies of them. `service` keeps subscriptions and
shows deliveries, `delivery_worker` delivers, `routes` and `commands` are for users and operators.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:WebhooksExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
