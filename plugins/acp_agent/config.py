"""Configuration of the Agent Client Protocol over WebSockets, and the query of a connection."""

from typing import Annotated

from msgspec import Meta, Struct


class AcpAgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `acp_agent` section: editors on other machines, without the command `agentsvc acp`."""

    enabled: bool = False
    """Serve the Agent Client Protocol over WebSockets at /acp, so that editors use the server as a
    remote agent with a user's key"""
    connections_per_user: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Maximum number of connected editors per user"""


class OrderQuery(Struct, frozen=True, kw_only=True):
    """The repository and model for new sessions of a connection."""

    repository: str | None = None
    """Repository to clone, as `owner/name`; omitted: none"""
    branch: str | None = None
    """Branch to check out; omitted: the default branch"""
    model: str | None = None
    """Model; omitted: the model of the settings"""
