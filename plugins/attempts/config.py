"""Configuration of attempts."""

from typing import Annotated, Final

from msgspec import Meta, Struct

MAX: Final = 32
"""Upper bound of `most_attempts`."""


class AttemptsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `attempts` section: one task for several agents at once."""

    enabled: bool = True
    """Run attempts, and serve their API"""
    most_attempts: Annotated[int, Meta(ge=2, le=MAX)] = 8
    """Maximum number of attempts per task"""
    most_per_user: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Maximum number of stored tasks with attempts per user"""
    test_seconds: Annotated[float, Meta(ge=1, le=86400)] = 1800.0
    """Time limit of the tests of an attempt"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=100 * 365 * 86400)] = 90 * 86400.0
    """Age at which the records of finished tasks are deleted, without their conversations; 0:
    never"""
