"""Configuration of attempts."""

from typing import Annotated, Final

from msgspec import Meta, Struct

MAX: Final = 32
"""Attempts of one task that an operator may allow."""


class AttemptsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `attempts` section: one task given to several agents at once."""

    enabled: bool = True
    """Make attempts, and serve their API"""
    most_attempts: Annotated[int, Meta(ge=2, le=MAX)] = 8
    """Most attempts that one task may have"""
    most_per_user: Annotated[int, Meta(ge=1, le=1000)] = 100
    """Most tasks with attempts that are kept of a user"""
    test_seconds: Annotated[float, Meta(ge=1, le=86400)] = 1800.0
    """Time limit of the tests of an attempt"""
    delete_after_seconds: Annotated[float, Meta(ge=0, le=100 * 365 * 86400)] = 90 * 86400.0
    """Age at which the record of attempts that are over is deleted, without their conversations; 0:
    never"""
