"""Configuration of editors that reach the server by the Agent Client Protocol."""

from typing import Annotated

from msgspec import Meta, Struct


class AcpAgentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `acp_agent` section: editors on other machines, without a command there."""

    enabled: bool = False
    """Serve the Agent Client Protocol over WebSockets at /acp, so that editors use the server as a
    remote agent with a user's key"""
    connections_per_user: Annotated[int, Meta(ge=1, le=1000)] = 10
    """Most editors of one user that are connected at a time"""
