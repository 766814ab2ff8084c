"""Host names that give sandbox ports an origin of their own. Pure.

Such a name is a DNS label below the sandbox domain, for example `worker-1-{sandbox id}`. The agent
server has no host name: clients reach it by its path.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Final

from agentsvc.sandboxes import AGENT_PORT

EDITOR_PORT: Final = "vscode"
"""Name of the port of a sandbox's editor."""
LOCAL_DOMAIN: Final = "localhost"
"""The domain whose names browsers resolve to their own machine without DNS."""

_LABEL_CHARS: Final = 63
_LABEL = re.compile(r"\A([a-z][a-z0-9_-]*)-([0-9a-f]{32})\Z")
_RESERVED = re.compile(r"\A..--")
"""Prefix of labels that DNS reserves, such as `xn--` of internationalized names."""
_PORT_NUMBER = re.compile(r":[0-9]*\Z")


def label_of(sandbox_id: str, port: str) -> str | None:
    """Return the DNS label of a port, or None if the port gets no origin of its own."""
    label = f"{port.replace('_', '-')}-{sandbox_id}"
    is_label = len(label) <= _LABEL_CHARS and not _RESERVED.match(label)
    return label if is_label and port != AGENT_PORT else None


def read_label(label: str) -> tuple[str, str] | None:
    """Return the sandbox id and the port name in a label, or None for any other label."""
    found = _LABEL.match(label)
    if found is None:
        return None
    port, sandbox_id = found.group(1).replace("-", "_"), found.group(2)
    return (sandbox_id, port) if label_of(sandbox_id, port) == label else None


def name_of(host: str) -> str:
    """Normalize a Host header: lower case, without the port and a trailing dot."""
    return _PORT_NUMBER.sub("", host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_local(name: str) -> bool:
    """Whether a host name is `localhost` or a loopback address."""
    if name == LOCAL_DOMAIN:
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def domain_of(wildcard: str) -> str:
    """Return the domain of a wildcard such as `*.example.org`."""
    return wildcard.removeprefix("*.").lower()


def label_below(name: str, domain: str) -> str | None:
    """Return the labels of a host name below a domain, or None if it is not a subdomain."""
    rest = name.removesuffix(f".{domain}") if domain else name
    return None if rest == name else rest
