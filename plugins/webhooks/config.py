"""Configuration of outgoing webhooks."""

from typing import Annotated

from msgspec import Meta, Struct


class WebhooksConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `webhooks` section: how users' programs are told of events and changes."""

    allow_private: bool = False
    """Deliver to loopback, private and link-local addresses, too; users can then make the server
    send requests into its own network"""
    send_seconds: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """Longest time a receiver may take to answer"""
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Most deliveries that are made at a time; those of one user take at most half of them"""
    first_retry_seconds: Annotated[float, Meta(gt=0, le=86400)] = 5.0
    """Longest time until a failed delivery is tried again; it doubles with each try"""
    longest_retry_seconds: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """What the time between two tries doubles up to"""
    give_up_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 259200.0
    """Age at which a delivery that still fails is given up"""
    rotation_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 86400.0
    """How long deliveries are signed with the former secret, too, after it was replaced"""
    keep_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 604800.0
    """How long deliveries that are made or given up can be seen and replayed"""
