"""Connections to addresses that users name: never to private ones, unless that is allowed."""

from agentsvc.egress.addresses import BadHost, is_outside, parse_host
from agentsvc.reach import Lookup, Reach, refusal_in
from agentsvc.urls import WEBHOOK_URL

__all__ = ["WEBHOOK_URL", "BadHost", "Lookup", "Reach", "is_outside", "parse_host", "refusal_in"]
