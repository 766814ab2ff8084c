"""Host names of sandbox ports that have an origin of their own. Pure.

`worker-1-{sandbox id}` below a domain is such a name, a label of the domain name system. The agent
server has none: clients know it by its paths.
"""

import ipaddress
import re
from functools import lru_cache
from typing import Final

from agentsvc.sandboxes import AGENT_PORT

EDITOR_PORT: Final = "vscode"
"""The name of the port on which a sandbox's editor listens."""
LOCAL_DOMAIN: Final = "localhost"
"""The domain whose names lead to the caller's own machine without any set-up."""

_LABEL_CHARS: Final = 63
_LABEL = re.compile(r"\A([a-z][a-z0-9_-]*)-([0-9a-f]{32})\Z")
_RESERVED = re.compile(r"\A..--")
"""How labels begin that stand for something else, such as names in other scripts."""
_PORT_NUMBER = re.compile(r":[0-9]*\Z")


def label_of(sandbox_id: str, port: str) -> str | None:
    """Return the label of a port; None for one that has no origin of its own."""
    label = f"{port.replace('_', '-')}-{sandbox_id}"
    is_label = len(label) <= _LABEL_CHARS and not _RESERVED.match(label)
    return label if is_label and port != AGENT_PORT else None


def read_label(label: str) -> tuple[str, str] | None:
    """Return the sandbox and the port that a label is for; None for any other label."""
    found = _LABEL.match(label)
    if found is None:
        return None
    port, sandbox_id = found.group(1).replace("-", "_"), found.group(2)
    return (sandbox_id, port) if label_of(sandbox_id, port) == label else None


def name_of(host: str) -> str:
    """Return the name in a Host header as it is compared: without port and the dot of the root."""
    return _PORT_NUMBER.sub("", host).rstrip(".").lower()


@lru_cache(maxsize=256)
def is_local(name: str) -> bool:
    """Whether a name or an address leads to the machine of whoever uses it."""
    if name == LOCAL_DOMAIN:
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def domain_of(wildcard: str) -> str:
    """Return the domain that a wildcard stands for, such as `*.example.org`."""
    return wildcard.removeprefix("*.").lower()


def label_below(name: str, domain: str) -> str | None:
    """Return what stands before a domain in a name; None unless the name is below it."""
    rest = name.removesuffix(f".{domain}") if domain else name
    return None if rest == name else rest
