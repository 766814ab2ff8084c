"""Checks the Host header against the names of this server.

Protects from DNS rebinding: a page whose host name resolves to this machine would share its origin
with the server. So a request with an unknown host name is rejected unless it has a valid key.
"""

import ipaddress
import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from agentsvc.config import Config
from agentsvc.http.port_origins import LOCAL_DOMAIN, domain_of, name_of

_ANY_HOST: Final = "*"


class KnownHosts(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted host names and domains with their subdomains; IP addresses are always accepted."""

    names: frozenset[str]
    domains: frozenset[str]

    def knows(self, host: str) -> bool:
        """Whether the value of a Host header is accepted."""
        name = name_of(host)
        if _ANY_HOST in self.names or name in self.names or _is_address(name):
            return True
        return any(name.endswith(f".{domain}") for domain in self.domains)


def known_hosts(config: Config, *, machine: str = "") -> KnownHosts:
    """Return the host names in the configuration and those of this machine."""
    server = config.server
    machine = (machine or socket.gethostname()).lower()
    urls = (server.public_url, server.internal_url)
    wildcards = [name for name in server.allowed_hosts if name.startswith("*.")]
    names = (
        LOCAL_DOMAIN,
        machine,
        f"{machine}.local",
        *(urlsplit(url).hostname for url in urls),
        *(name_of(name) for name in server.allowed_hosts),
        name_of(server.host),
    )
    domains = (LOCAL_DOMAIN, domain_of(config.gateway.sandbox_domain), *map(domain_of, wildcards))
    return KnownHosts(
        names=frozenset(filter(None, names)),
        domains=frozenset(filter(None, domains)),
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
