"""Connections to addresses that users name: never to private ones, unless that is allowed."""

from agentsvc.agentserver import Lookup, SafeConnector, refusal_in
from agentsvc.base import WEBHOOK_URL
from agentsvc.plugin.egress import BadHost, is_outside, parse_host

__all__ = [
    "WEBHOOK_URL",
    "BadHost",
    "Lookup",
    "SafeConnector",
    "is_outside",
    "parse_host",
    "refusal_in",
]
