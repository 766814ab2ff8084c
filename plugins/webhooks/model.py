"""Records of webhook subscriptions and deliveries."""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType


class ChangeKind(StrEnum):
    """What a subscriber may be told of beside events: that one of these changed or was deleted."""

    CONVERSATION = "conversation"
    SANDBOX = "sandbox"
    START_TASK = "start_task"


class DeliveryState(StrEnum):
    """How far a delivery is."""

    PENDING = "pending"
    """It is still to be made, perhaps again."""
    DELIVERED = "delivered"
    """The receiver has taken it."""
    FAILED = "failed"
    """It was given up."""


class SubscriptionDraft(msgspec.Struct, frozen=True, kw_only=True):
    """What a user wants of a subscription; what is unset stays as it is.

    `event_kinds` are the kinds of events that are told, None stands for every kind.
    """

    url: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    event_kinds: tuple[str, ...] | UnsetType | None = UNSET
    changes: tuple[ChangeKind, ...] | UnsetType = UNSET
    is_enabled: bool | UnsetType = UNSET


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Where a user wants to be told, and of what.

    `disabled_reason` is there if it was not the user who disabled it. Nothing is sent before
    `quiet_until`. What is sent until `former_until` is signed with the former secret, too.
    """

    id: str
    user_id: str
    url: str
    description: str
    event_kinds: tuple[str, ...] | None
    changes: tuple[ChangeKind, ...]
    is_enabled: bool
    created_at: datetime
    updated_at: datetime
    disabled_reason: str = ""
    quiet_until: datetime | None = None
    former_until: datetime | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is told to one subscriber.

    `lane` is the id of the conversation or the sandbox it is about: in a lane one thing is told
    after the other. An event is named by its `seq`, and `data` is what a change says.
    """

    number: int
    id: str
    subscription_id: str
    lane: str
    type: str
    seq: int | None
    data: str | None
    state: DeliveryState
    attempts: int
    status: int | None
    reason: str
    created_at: datetime
    begun_at: datetime
    due_at: datetime
    settled_at: datetime | None
