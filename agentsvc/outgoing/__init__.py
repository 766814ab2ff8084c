"""Outgoing webhooks: who wants to be told of what, and telling it, signed, in order, at least once.

What is to be told is noted by triggers of the database, in the transaction that makes it true; the
rows of the queue name stored events and hold no copies of them. `service` keeps subscriptions and
shows deliveries, `courier` delivers.
"""

from agentsvc.outgoing.courier import Courier
from agentsvc.outgoing.model import Change, Delivery, DeliveryState, Subscription, SubscriptionDraft
from agentsvc.outgoing.service import Webhooks

__all__ = [
    "Change",
    "Courier",
    "Delivery",
    "DeliveryState",
    "Subscription",
    "SubscriptionDraft",
    "Webhooks",
]
