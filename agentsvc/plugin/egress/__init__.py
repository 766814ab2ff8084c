"""Restricts a sandbox's outgoing connections: a forward proxy with a list of allowed hosts.

Standard library only, so that the folder runs in any container that has Python 3.12.

In the server: `Proxy(Policy(...), name=sandbox_id)` and `await proxy.listen_on(socket)`, or
`listen_tcp(host, port)`; `proxy.policy` may be replaced at any time, `await proxy.close()` ends it.
`Resolver` is shared by several proxies.
In a gateway container, to which this package is copied: `python -m agentsvc.egress --policy FILE`, where
FILE is JSON that `from_json` reads, read again at SIGHUP.
Inside the sandbox: `Relay` of `relay` (one file) forwards a port of the loopback interface to the
proxy's socket; the variables of `proxy_environment(port)` make programs use it.
"""

from .addresses import SANDBOX_SOURCES as SANDBOX_SOURCES
from .addresses import Address as Address
from .addresses import BadHost as BadHost
from .addresses import is_outside as is_outside
from .addresses import meant as meant
from .addresses import parse_host as parse_host
from .addresses import source_of as source_of
from .addresses import split_port as split_port
from .policy import Mode as Mode
from .policy import Policy as Policy
from .policy import from_json as from_json
from .policy import parse_policy as parse_policy
from .policy import show as show
from .proxy import Proxy as Proxy
from .proxy import ProxyLimits as ProxyLimits
from .resolver import Resolver as Resolver


def proxy_environment(port: int) -> dict[str, str]:
    """Return the variables that make programs in a sandbox use a proxy relay on that port.

    Connections to the sandbox's own loopback addresses bypass the proxy.
    """
    url = f"http://127.0.0.1:{port}"
    direct = "localhost,127.0.0.1,::1"
    upper = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": direct}
    return upper | {name.lower(): value for name, value in upper.items()}
