"""Connections to addresses from users: never to private ones, unless that is allowed."""

from agentsvc.agentserver import Lookup as Lookup
from agentsvc.agentserver import SafeConnector as SafeConnector
from agentsvc.agentserver import refusal_in as refusal_in
from agentsvc.base import WEBHOOK_URL as WEBHOOK_URL
from agentsvc.plugin.egress import BadHost as BadHost
from agentsvc.plugin.egress import is_outside as is_outside
from agentsvc.plugin.egress import parse_host as parse_host
