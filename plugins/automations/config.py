"""Configuration of automations."""

from typing import Annotated

from msgspec import Meta, Struct


class AutomationsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `automations` section: conversations that start on a schedule or by a webhook."""

    enabled: bool = True
    """Run automations, and serve their API"""
    most_per_user: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Maximum number of automations per user"""
    late_seconds: Annotated[float, Meta(ge=1, le=86400)] = 60.0
    """Age at which a due time counts as missed, so that the automation's rule for missed runs
    applies"""
    delete_runs_after_seconds: Annotated[float, Meta(ge=0, le=100 * 365 * 86400)] = 90 * 86400.0
    """Age at which finished runs are deleted, with the keys that identify repeated deliveries; 0:
    never"""
