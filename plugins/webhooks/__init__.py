"""Outgoing webhooks: subscriptions to events and changes, delivered signed, in order, at least once.

Triggers of the database enqueue deliveries in the transaction of the change; rows of the queue refer
to stored events instead of copying them. `service` manages subscriptions and lists deliveries,
`delivery_worker` sends them, `routes` and `commands` are the interfaces for users and operators.
"""

from agentsvc.plugin import offers

agentsvc_register_extensions = offers(f"{__name__}.routes:WebhooksExtension")
agentsvc_register_commands = offers(f"{__name__}.commands:command")
