"""Configuration of editors that reach the server by the Agent Client Protocol, and what each may say."""

from typing import Annotated

from msgspec import Meta, Struct


class AcpAgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `acp_agent` section: editors on other machines, without a command there."""

    enabled: bool = False
    """Serve the Agent Client Protocol over WebSockets at /acp, so that editors use the server as a
    remote agent with a user's key"""
    connections_per_user: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Most editors of one user that are connected at a time"""


class OrderQuery(Struct, frozen=True, kw_only=True):
    """What new sessions of a connection work on, and with which model."""

    repository: str | None = None
    """Repository to clone, as `owner/name`; left out: none"""
    branch: str | None = None
    """Branch to check out; left out: the default one"""
    model: str | None = None
    """Model; left out: that of the settings"""
