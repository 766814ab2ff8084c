"""What an operator can set for outgoing webhooks."""

from typing import Annotated

from msgspec import Meta, Struct


class WebhooksConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `webhooks` section: how users' programs are told of events and changes."""

    allow_private: Annotated[
        bool,
        Meta(
            description="Deliver to loopback, private and link-local addresses, too;"
            " users can then make the server send requests into its own network"
        ),
    ] = False
    send_seconds: Annotated[
        float, Meta(gt=0, le=300, description="Longest time a receiver may take to answer")
    ] = 15.0
    concurrency: Annotated[
        int, Meta(ge=1, le=1000, description="Most deliveries that are made at a time")
    ] = 16
    first_retry_seconds: Annotated[
        float,
        Meta(
            gt=0,
            le=86400,
            description="Longest time until a failed delivery is tried again;"
            " it doubles with each try",
        ),
    ] = 5.0
    longest_retry_seconds: Annotated[
        float, Meta(gt=0, le=86400, description="What the time between two tries doubles up to")
    ] = 600.0
    give_up_seconds: Annotated[
        float,
        Meta(ge=0, le=10**9, description="Age at which a delivery that still fails is given up"),
    ] = 259200.0
    rotation_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=10**9,
            description="How long deliveries are signed with the former secret, too, after it was"
            " replaced",
        ),
    ] = 86400.0
    keep_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=10**9,
            description="How long deliveries that are made or given up can be seen and replayed",
        ),
    ] = 604800.0
