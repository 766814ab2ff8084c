"""Configuration of shared conversations."""

from typing import Annotated

from msgspec import Meta, Struct


class SharingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sharing` section: links to conversations."""

    enabled: bool = False
    """Let users create links that show a conversation without a key"""
    public_flag: bool = False
    """Share a conversation also under its own id while its `public` is true, as set by the share button
    of published front ends; without redaction"""
    longest_days: Annotated[int, Meta(ge=0, le=36500)] = 0
    """Maximum lifetime of a link, in days; 0: unlimited"""
    requests_per_minute: Annotated[int, Meta(ge=0)] = 240
    """Maximum requests a minute from one address; 0 is no limit"""
