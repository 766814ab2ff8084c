"""The server's public address as the caller sees it, and the URLs derived from it.

Forwarding headers are used only from trusted proxies; a configured `server.public_url` overrides
them.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
from aiohttp import hdrs, web

from agentsvc.base import Secret, StartFailed
from agentsvc.http.keys import CONFIG, PRINCIPAL, SDK_VERSION
from agentsvc.http.port_origins import (
    EDITOR_PORT,
    LOCAL_DOMAIN,
    domain_of,
    is_local,
    label_below,
    label_of,
    name_of,
)
from agentsvc.http.sdk_versions import Version, mark
from agentsvc.http.server.connection_limit import Network, caller_of
from agentsvc.plugin.egress import SANDBOX_SOURCES
from agentsvc.sandboxes import AGENT_PORT, Sandbox, SandboxStatus

MOUNT: Final = "/sandboxes"
"""Path prefix of the ports of all sandboxes."""

_HOST = re.compile(r"\A(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z")
_PREFIX = re.compile(r"\A(?:/[A-Za-z0-9._~%-]+)+\Z")
_PAIR = re.compile(r'(?:^|[;\s])(proto|host|for)="?([^";,\s]+)"?', re.IGNORECASE)
_PORT_NUMBER = re.compile(r":[0-9]+\Z")
_WITH_PORT = re.compile(r"\A(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+))(?::[0-9]+)?\Z")
_ADDRESS_CHARS: Final = 64
_SCHEMES: Final = frozenset({"http", "https"})

TRUSTED: Final[web.AppKey[tuple[Network, ...]]] = web.AppKey("trusted_proxies")
"""Networks of proxies whose forwarding headers are trusted."""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The public address of the server: for example `https`, `example.org`, `/agents`."""

    scheme: str
    host: str
    prefix: str = ""

    @property
    def url(self) -> str:
        """Return the URL without a trailing slash."""
        return f"{self.scheme}://{self.host}{self.prefix}"


class WorkOrigin(Origin, frozen=True, kw_only=True):
    """The own origin of a work port; `label` is its subdomain."""

    label: str


class Links(msgspec.Struct, frozen=True, kw_only=True):
    """Builds URLs of this server for the responses to one caller."""

    base: str
    domain: str = ""
    """Domain whose subdomains are the origins of work ports; empty if they have no own origins."""
    editor_domain: str = ""
    """The same for the editor; `localhost` works, too, because only browsers open the editor."""
    shows_keys: bool = True
    """Whether the caller may see session keys, which give full access to a sandbox."""
    sdk_version: Version | None = None
    """SDK version that the caller's key states; session keys in responses get the same suffix."""

    def shown(self, key: Secret | None) -> str | None:
        """Return a session key with the caller's version suffix, or None if it is not shown."""
        if key is None or not self.shows_keys:
            return None
        return mark(key.reveal(), self.sdk_version)

    @property
    def prefix(self) -> str:
        """The path of the public address, or an empty string."""
        return urlsplit(self.base).path

    def worker(self, sandbox: Sandbox, name: str) -> str:
        """Return the URL of a work port, at its own origin if it has one."""
        return self._below(self.domain, sandbox, name)

    def port(self, sandbox: Sandbox, name: str) -> str:
        """Return the URL of a port below this server's path, without a trailing slash."""
        return f"{self.base}{mount_of(sandbox.id, name)}"

    def agent_of(self, sandbox_id: str) -> str:
        """Return the URL of the agent server of a sandbox, whatever its state."""
        return f"{self.base}{mount_of(sandbox_id, AGENT_PORT)}"

    def agent(self, sandbox: Sandbox) -> str | None:
        """Return the URL of the agent server, or None unless it runs."""
        return None if sandbox.agent_url is None else self.port(sandbox, AGENT_PORT)

    def runtime(self, sandbox_id: str, *, at_root: bool) -> str:
        """Return the URL of the agent server for callers of the remote runtime API.

        The path starts with the sandbox's id, so that callers find the work ports below it. With
        `at_root`, only the agent server is reachable.
        """
        return self.agent_at_root(sandbox_id) if at_root else f"{self.base}/{sandbox_id}"

    def agent_at_root(self, sandbox_id: str) -> str:
        """Return the URL of the agent server for clients that only accept URLs without a path.

        The session key in a request to the root selects the sandbox. If this server has a path
        prefix, return the URL with a path.
        """
        return self.agent_of(sandbox_id) if self.prefix else self.base

    def conversation(self, sandbox: Sandbox | None, conversation_id: str) -> str | None:
        """Return the URL of a conversation at its agent server, or None unless that runs."""
        agent = self.agent(sandbox) if sandbox is not None else None
        return f"{agent}/api/conversations/{conversation_id}" if agent else None

    def editor_root(self, sandbox: Sandbox) -> str:
        """Return the URL of the editor, at its own origin if it has one."""
        return self._below(self.editor_domain, sandbox, EDITOR_PORT)

    def editor(self, sandbox: Sandbox, folder: str) -> str | None:
        """Return the URL that opens a folder in the editor.

        None if the sandbox does not run or has no editor, or if the caller may not see its key.
        """
        session_key = sandbox.session_key.reveal() if self.shows_keys else None
        is_running = sandbox.status is SandboxStatus.RUNNING
        has_editor = any(end.name == EDITOR_PORT for end in sandbox.endpoints)
        if session_key is None or not is_running or not has_editor:
            return None
        key = quote(session_key, safe="")
        return f"{self.editor_root(sandbox)}/?tkn={key}&folder={quote(folder, safe='')}"

    def _below(self, domain: str, sandbox: Sandbox, name: str) -> str:
        label = label_of(sandbox.id, name) if domain else None
        if label is None:
            return self.port(sandbox, name)
        parts = urlsplit(self.base)
        number = _PORT_NUMBER.search(parts.netloc)
        return f"{parts.scheme}://{label}.{domain}{number.group() if number else ''}"


def mount_of(sandbox_id: str, name: str) -> str:
    """Return the path of a port of a sandbox."""
    return f"{MOUNT}/{sandbox_id}/{name}"


def to_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse addresses and networks of `server.trusted_proxies`; raises StartFailed."""
    return tuple(_to_network(text) for text in texts)


def links_of(request: web.Request) -> Links:
    """Return the URL builder for the caller of a request."""
    config, caller = request.app[CONFIG], request.get(PRINCIPAL)
    return _make_links(
        origin_of(request),
        config.gateway.sandbox_domain,
        not config.server.public_url and not is_from_proxy(request),
        caller is None or caller.may_run,
        request.get(SDK_VERSION),
    )


@lru_cache(maxsize=256)
def _make_links(
    origin: Origin, wildcard: str, is_direct: bool, shows_keys: bool, version: Version | None
) -> Links:
    domain = domain_of(wildcard)
    # A caller at a loopback address without a proxy has a browser that resolves `*.localhost`.
    local = LOCAL_DOMAIN if is_direct and is_local(name_of(origin.host)) else ""
    return Links(
        base=origin.url,
        domain=domain,
        editor_domain=domain or local,
        shows_keys=shows_keys,
        sdk_version=version,
    )


def origin_of(request: web.Request) -> Origin:
    """Return the public address at which the caller of a request reached the server."""
    configured = request.app[CONFIG].server.public_url
    if configured:
        parts = urlsplit(configured)
        return Origin(scheme=parts.scheme, host=parts.netloc, prefix=parts.path.rstrip("/"))
    return _seen_origin(request)


def work_origin_of(request: web.Request) -> WorkOrigin | None:
    """Return the work port origin in a request's host, or None if the request is for the server.

    The port need not exist: every host below such a domain except the host of `server.public_url`
    counts as a port, never as the server.
    """
    config = request.app[CONFIG]
    own_host, scheme = _own_host(request), request.scheme
    hosts = (own_host, own_host)
    if is_from_proxy(request):
        seen = _seen_origin(request)
        hosts, scheme = (own_host, seen.host), seen.scheme
    return _find_work_origin(hosts, scheme, config.gateway.sandbox_domain, config.server.public_url)


@lru_cache(maxsize=256)
def _find_work_origin(
    hosts: tuple[str, str], seen_scheme: str, sandbox_domain: str, public_url: str
) -> WorkOrigin | None:
    public = urlsplit(public_url)
    # A page can make a browser send any header except Host.
    schemes = {LOCAL_DOMAIN: seen_scheme, domain_of(sandbox_domain): public.scheme or seen_scheme}
    for host in hosts:
        name = name_of(host)
        if public_url and name == name_of(public.netloc):
            continue
        for domain, scheme in schemes.items():
            label = label_below(name, domain)
            if label is not None:
                return WorkOrigin(scheme=scheme, host=host, label=label)
    return None


def _seen_origin(request: web.Request) -> Origin:
    own = Origin(scheme=request.scheme, host=_own_host(request))
    return _as_forwarded(request, own) if is_from_proxy(request) else own


def is_from_proxy(request: web.Request) -> bool:
    """Whether a request comes from a trusted proxy."""
    networks = request.app.get(TRUSTED, ())
    if not networks or not request.remote:
        return False
    try:
        address = ipaddress.ip_address(request.remote)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    found = mapped or address
    # Sandboxes have loopback addresses, which must not be trusted even if the loopback network is.
    return found not in SANDBOX_SOURCES and any(found in network for network in networks)


def address_of(request: web.Request) -> str:
    """Return the client address of a request, from the forwarding headers of a trusted proxy."""
    own = request.remote or ""
    if not is_from_proxy(request):
        return own
    client = _last(request, hdrs.X_FORWARDED_FOR) or _forwarded(request).get("for", "")
    if with_port := _WITH_PORT.match(client):
        client = with_port[1] or with_port[2]
    return (client if client.isascii() else "")[:_ADDRESS_CHARS] or own


def client_of(request: web.Request) -> str:
    """Return the key that limits count an unauthenticated client under: its address or network."""
    return caller_of(address_of(request))


def prefix_of(public_url: str) -> str:
    """Return the path of a configured public URL, without a trailing slash."""
    return urlsplit(public_url).path.rstrip("/")


def _to_network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as exc:
        raise StartFailed(
            f"`server.trusted_proxies` has an invalid address or network: `{text}`",
            hint="use addresses such as `127.0.0.1`, or networks such as `10.0.0.0/8`",
        ) from exc


def _own_host(request: web.Request) -> str:
    host = request.headers.get(hdrs.HOST, "")
    if _HOST.match(host):
        return host
    # The Host header is missing or invalid: use the configured listening address.
    server = request.app[CONFIG].server
    return (
        f"[{server.host}]:{server.port}" if ":" in server.host else f"{server.host}:{server.port}"
    )


def _as_forwarded(request: web.Request, own: Origin) -> Origin:
    """Return the origin from the forwarding headers; the last value is the nearest proxy's."""
    named = _forwarded(request)
    scheme = (_last(request, hdrs.X_FORWARDED_PROTO) or named.get("proto", "")).lower()
    host = _last(request, hdrs.X_FORWARDED_HOST) or named.get("host", "")
    prefix = _last(request, "X-Forwarded-Prefix").rstrip("/")
    return Origin(
        scheme=scheme if scheme in _SCHEMES else own.scheme,
        host=host if _HOST.match(host) else own.host,
        prefix=prefix if _PREFIX.match(prefix) else "",
    )


def _forwarded(request: web.Request) -> dict[str, str]:
    return {name.lower(): value for name, value in _PAIR.findall(_last(request, hdrs.FORWARDED))}


def _last(request: web.Request, name: str) -> str:
    values = request.headers.getall(name, [])
    return values[-1].rpartition(",")[2].strip() if values else ""
