"""Connections to addresses that users name: never to private ones, unless that is allowed."""

from agentsvc.agentserver.safe_connector import Lookup, SafeConnector, refusal_in
from agentsvc.base.urls import WEBHOOK_URL
from agentsvc.plugin.egress.addresses import BadHost, is_outside, parse_host

__all__ = [
    "WEBHOOK_URL",
    "BadHost",
    "Lookup",
    "SafeConnector",
    "is_outside",
    "parse_host",
    "refusal_in",
]
