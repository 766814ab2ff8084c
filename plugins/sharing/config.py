"""Configuration of shared conversations."""

from typing import Annotated

from msgspec import Meta, Struct


class SharingConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `sharing` section: conversations that are shown to whoever has a link."""

    enabled: bool = False
    """Let users make links that show a conversation without a key"""
    public_flag: bool = False
    """Share a conversation under its own id, too, while its `public` is true, as the share button
    of published front ends sets it; without redaction"""
    longest_days: Annotated[int, Meta(ge=0, le=36500)] = 0
    """Longest time a link may work, in days; 0: for ever"""
    requests_per_minute: Annotated[int, Meta(ge=0)] = 240
    """Most requests a minute from one address; 0 is no limit"""
