"""Connections to addresses that users name: never to private ones, unless that is allowed."""

from agentsvc.egress.addresses import BadHost, is_outside, parse_host
from agentsvc.reach import Lookup, Reach, refusal_in

__all__ = ["BadHost", "Lookup", "Reach", "is_outside", "parse_host", "refusal_in"]
