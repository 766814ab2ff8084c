"""Webhook subscriptions and deliveries, as they are stored and asked for."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from agentsvc.base import stated
from agentsvc.extension.network import WEBHOOK_URL

from .targets import LONGEST_URL


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


type Url = Annotated[
    str, Meta(min_length=1, max_length=LONGEST_URL), stated(pattern=rf"\A{WEBHOOK_URL}\Z")
]
type Kind = Annotated[str, Meta(min_length=1, max_length=255)]


class WebhookOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A new subscription; without `event_kinds` or `changes`, or with null, all of them are told."""

    url: Url
    """http or https URL that deliveries are posted to, at most 2048 characters"""
    description: Annotated[str, Meta(max_length=255)] = ""
    """What it is for; shown only"""
    event_kinds: Annotated[list[Kind], Meta(max_length=100)] | None = None
    """Kinds of events to tell of, such as `MessageEvent`; null: all kinds, empty: none"""
    changes: Annotated[list[ChangeKind], Meta(max_length=len(ChangeKind))] | None = None
    """Kinds of things whose changes to tell of; null: all, empty: none"""
    is_enabled: bool = True
    """Whether anything is delivered"""


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
