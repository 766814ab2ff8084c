"""What an operator can set for attempts."""

from typing import Annotated, Final

from msgspec import Meta, Struct

MOST: Final = 32
"""Attempts of one task that an operator may allow."""


class AttemptsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `attempts` section: one task given to several agents at once."""

    enabled: Annotated[bool, Meta(description="Make attempts, and serve their API")] = True
    most_attempts: Annotated[
        int, Meta(ge=2, le=MOST, description="Most attempts that one task may have")
    ] = 8
    most_per_user: Annotated[
        int, Meta(ge=1, le=1000, description="Most tasks with attempts that are kept of a user")
    ] = 100
    test_seconds: Annotated[
        float, Meta(ge=1, le=86400, description="Time limit of the tests of an attempt")
    ] = 1800.0
    delete_after_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=100 * 365 * 86400,
            description="Age at which the record of attempts that are over is deleted, without their"
            " conversations; 0: never",
        ),
    ] = 90 * 86400.0
