"""Webhook subscriptions and deliveries, in the database and in the API."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from agentsvc.base import stated
from agentsvc.extension.network import WEBHOOK_URL

from .targets import LONGEST_URL


class ChangeKind(StrEnum):
    """The kinds of objects whose changes and deletion a subscription may cover, besides events."""

    CONVERSATION = "conversation"
    SANDBOX = "sandbox"
    START_TASK = "start_task"


class DeliveryState(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    """It is not delivered yet; it may have failed before."""
    DELIVERED = "delivered"
    """The receiver has accepted it."""
    FAILED = "failed"
    """It is not retried any more."""


type Url = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_URL), stated(pattern=rf"\A{WEBHOOK_URL}\Z")
]
type Kind = Annotated[str, Meta(min_length=1, max_length=255)]


class WebhookOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new subscription; if `event_kinds` or `changes` is omitted or null, all kinds are delivered."""

    url: Url
    """http or https URL of the receiver, at most 2048 characters"""
    description: Annotated[str, Meta(max_length=255)] = ""
    """Purpose of the subscription, for display only"""
    event_kinds: Annotated[list[Kind], Meta(max_length=100)] | None = None
    """Kinds of events to deliver, such as `MessageEvent`; null: all kinds, empty: none"""
    changes: Annotated[list[ChangeKind], Meta(max_length=len(ChangeKind))] | None = None
    """Kinds of objects whose changes to deliver; null: all, empty: none"""
    is_enabled: bool = True
    """Whether anything is delivered"""


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A user's subscription to events and changes.

    `disabled_reason` is set if the server disabled it. Nothing is sent before
    `quiet_until`. Until `former_until`, deliveries are also signed with the former secret.
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
    """The delivery of one event or change to one subscription.

    `lane` is the id of the conversation or the sandbox it is about: deliveries of a lane are sent one
    after the other. `seq` is the number of an event, and `data` the content of a change.
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
