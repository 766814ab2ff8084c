"""Configuration of outgoing webhooks."""

from typing import Annotated

from msgspec import Meta, Struct


class WebhooksConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `webhooks` section: delivery of events and changes to users' programs."""

    allow_private: bool = False
    """Deliver to loopback, private and link-local addresses, too; users can then make the server
    send requests into its own network"""
    send_seconds: Annotated[float, Meta(gt=0, le=300)] = 15.0
    """Time limit for the response of a receiver"""
    concurrency: Annotated[int, Meta(ge=1, le=1000)] = 16
    """Maximum number of concurrent deliveries; each user gets at most half of them"""
    first_retry_seconds: Annotated[float, Meta(gt=0, le=86400)] = 5.0
    """Maximum time until the first retry of a failed delivery; it doubles with each retry"""
    longest_retry_seconds: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    """Upper limit of the time between two attempts"""
    give_up_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 259200.0
    """Age after which a failing delivery is not retried any more"""
    rotation_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 86400.0
    """How long deliveries are also signed with the former secret after a rotation"""
    keep_seconds: Annotated[float, Meta(ge=0, le=10**9)] = 604800.0
    """How long delivered and failed deliveries can be listed and replayed"""
