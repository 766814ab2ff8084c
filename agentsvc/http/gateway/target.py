"""Builds the upstream request to a sandbox from a client's request."""

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

import msgspec
from aiohttp import HttpVersion10, HttpVersion11, hdrs, web
from multidict import CIMultiDict

from agentsvc.agentserver import Confirm
from agentsvc.base import BadRequest, MalformedBody, MethodNotAllowed, NotAllowed, NotFound
from agentsvc.http.gateway import headers
from agentsvc.http.gateway import port_cookies as own_origin
from agentsvc.http.gateway import rewriting as rewrite
from agentsvc.http.gateway.address import Address, address_of
from agentsvc.http.gateway.headers import ResponseScope
from agentsvc.http.keys import CONFIG, REQUEST_ID, SANDBOXES, SENT_TARGET
from agentsvc.http.middleware.authentication import keys_of, password_of
from agentsvc.http.middleware.login_cookie import login_token
from agentsvc.http.port_origins import EDITOR_PORT, read_label
from agentsvc.http.routes import KEY_PARAMETER, MAX_QUERY_KEYS
from agentsvc.http.sdk_versions import EventReader
from agentsvc.http.urls import Origin, WorkOrigin, is_from_proxy, links_of, mount_of, origin_of
from agentsvc.sandboxes import AGENT_PORT, Sandbox

_UNSENDABLE = re.compile(r"[\0-\x20\x7f]")
_VERSIONS: Final = frozenset({HttpVersion10, HttpVersion11})
_ALLOWED: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
_REJECTED_METHODS: Final = frozenset({hdrs.METH_CONNECT, hdrs.METH_TRACE})
_EDITED_BYTES: Final = 8 * 1024 * 1024
"""Largest body that is rewritten; larger ones are forwarded unchanged."""
_EDITOR_COOKIE: Final = "vscode-tkn"
"""The editor's own cookie with its key; confined to the editor's path."""
_EDITOR_ORIGIN: Final = (
    "The editor needs its own origin; below a path it would share this server's. "
    "An operator can set gateway.sandbox_domain to give it one, "
    "or gateway.trust_editors to let it share the server's."
)


class PortRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The port that a request is for, and path and query there, as the client encoded them."""

    port: str
    path: str
    query: str
    is_at_root: bool = False
    """Whether the request was sent to the root of this server, without the sandbox's path."""
    mount: str = ""
    """Path prefix of the port in this request, if it is not the default."""
    own_origin: WorkOrigin | None = None
    """The port's own origin, if the request was sent to it."""


class ProxyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream request, and how to convert its body and response."""

    address: Address
    path: str
    """Path with query."""
    headers: CIMultiDict[str]
    confines: ResponseScope
    confirm: Confirm | None = None
    """Verifies the peer of a new connection to the address."""
    edit_body: Callable[[bytes], bytes] | None = None
    """Rewrites the request body; None to stream it unchanged."""
    reader: EventReader | None = None
    """Converts events in the response for an older client; None to leave it unchanged."""
    more_headers: CIMultiDict[str] = msgspec.field(default_factory=CIMultiDict)
    """Headers to add to the response."""


class RequestKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys in a request, by what they may authorize."""

    keys: tuple[str, ...]
    """API keys or session keys, from headers."""
    sandbox_keys: tuple[str, ...]
    """Session keys only, from the URL and cookies, which pages of the sandbox may read."""
    others: tuple[str, ...]
    """Passwords of HTTP Basic, which authorize nothing here, but are hidden from the sandbox."""
    login: str = ""
    """The token of a browser's login."""
    origin: WorkOrigin | None = None
    port_token: str = ""
    """Token in the cookie of the port's own origin."""

    @property
    def is_empty(self) -> bool:
        """Whether the request has no key that could authorize it."""
        return not (self.keys or self.sandbox_keys or self.login or self.port_token)


def parse_port_request(request: web.Request, origin: WorkOrigin) -> tuple[str, PortRequest]:
    """Parse a request to a port's own origin into sandbox id and port request; raises NotFound."""
    found = read_label(origin.label)
    target = request.get(SENT_TARGET, request.raw_path).partition("#")[0]
    if found is None or not target.startswith("/"):
        raise NotFound
    sandbox_id, port = found
    path, _, query = target.partition("?")
    return sandbox_id, PortRequest(port=port, path=path, query=query, own_origin=origin)


def request_keys_of(request: web.Request, place: PortRequest) -> RequestKeys:
    """Collect the keys of a request from all places where published clients put them."""
    elsewhere = [*rewrite.find_parameters(place.query, KEY_PARAMETER)]
    if place.port == EDITOR_PORT:
        elsewhere += rewrite.find_parameters(place.query, rewrite.EDITOR_KEY_PARAMETER)
        if place.own_origin is None or own_origin.may_show_editor_key(request, place.own_origin):
            elsewhere.append(request.cookies.get(_EDITOR_COOKIE, ""))
    origin = place.own_origin
    return RequestKeys(
        keys=keys_of(request),
        sandbox_keys=tuple(key for key in elsewhere if key and key.isascii())[:MAX_QUERY_KEYS],
        others=password_of(request),
        login=shown_login(request, place),
        origin=origin,
        port_token=own_origin.cookie_token(request, origin) if origin else "",
    )


def shown_login(request: web.Request, place: PortRequest, *, page_part: str = "") -> str:
    """Return the login token of a request to the default path of a port; empty for any other."""
    is_usual = not (place.own_origin or place.is_at_root or place.mount)
    return login_token(request, page_part=page_part) if is_usual else ""


def check(request: web.Request, place: PortRequest) -> None:
    """Reject requests that cannot be forwarded unambiguously, or that have too many keys."""
    if len(rewrite.find_parameters(place.query, KEY_PARAMETER)) > MAX_QUERY_KEYS:
        raise BadRequest(f"There are more than {MAX_QUERY_KEYS} keys in the query")
    if request.version not in _VERSIONS:
        raise BadRequest("This version of HTTP is not supported")
    if request.method in _REJECTED_METHODS:
        raise MethodNotAllowed(allowed=_ALLOWED)
    codings = ",".join(request.headers.getall(hdrs.TRANSFER_ENCODING, []))
    if codings and codings.strip().lower() != "chunked":
        raise MalformedBody("This transfer coding is not supported")


def head_of(method: str, target: ProxyTarget, fields: Iterable[tuple[str, str]]) -> bytes:
    """Serialize the head of a request; raises BadRequest for invalid characters."""
    if _UNSENDABLE.search(target.path):
        raise BadRequest("The path contains control characters or spaces and cannot be forwarded")
    first = f"{method} {target.path} HTTP/1.1\r\n".encode("utf-8", "surrogateescape")
    host = (hdrs.HOST, target.address.authority)
    return first + headers.to_lines((host, *fields)) + b"\r\n"


def make_target(
    request: web.Request, sandbox: Sandbox, place: PortRequest, *, keys: frozenset[str]
) -> ProxyTarget:
    """Build the request for a running sandbox; `keys` are removed from it.

    Raises NotFound for an unknown port, and NotAllowed for an editor page without its own origin.
    """
    end = next((end for end in sandbox.endpoints if end.name == place.port), None)
    if end is None:
        raise NotFound(f"The sandbox has no port of this name: {place.port}")
    is_apart = place.own_origin is None and not _is_trusted(request, place.port)
    if is_apart and place.port == EDITOR_PORT and own_origin.is_page(request):
        raise NotAllowed(_EDITOR_ORIGIN)
    origin = place.own_origin or origin_of(request)
    usual = place.mount or mount_of(sandbox.id, place.port)
    mount = "" if place.own_origin else origin.prefix + usual
    is_agent = place.port == AGENT_PORT
    path, query = _inside(request, sandbox, place, keys)
    address = msgspec.structs.replace(address_of(end.url, end.port), owner=sandbox.id)
    return ProxyTarget(
        address=address,
        path=address.base + (f"{path}?{query}" if query else path),
        headers=headers.to_sandbox(
            request.headers,
            # Another gateway in between has its own mount and sets the prefix itself.
            _forwarded(request, origin, "" if place.is_at_root or end.needs_key else mount),
            keys=keys,
            own_key=sandbox.session_key.reveal(),
            needs_key=is_agent or end.needs_key,
        ),
        confines=ResponseScope(
            upstream=address.origin,
            base=address.base,
            mount=mount,
            prefix=origin.prefix if place.is_at_root else mount,
            is_agent=is_agent,
            is_apart=is_apart,
            is_framed=_is_framed_editor(request, place),
            cookie=_cookie_of(sandbox, place),
        ),
        confirm=request.app[SANDBOXES].identity_verifier.of(sandbox.backend, sandbox.handle, end),
        edit_body=_edit_of(request, sandbox, place.path) if is_agent else None,
    )


def _is_trusted(request: web.Request, port: str) -> bool:
    return port == EDITOR_PORT and request.app[CONFIG].gateway.trust_editors


def _is_framed_editor(request: web.Request, place: PortRequest) -> bool:
    own = place.own_origin
    return place.port == EDITOR_PORT and own is not None and own_origin.is_framed(request, own)


def _cookie_of(sandbox: Sandbox, place: PortRequest) -> str:
    """Return a Set-Cookie value for a page opened at the port's origin by session key, or ''."""
    key = sandbox.session_key.reveal()
    is_shown = key in rewrite.find_parameters(place.query, KEY_PARAMETER)
    return own_origin.make_cookie(place.own_origin, key) if place.own_origin and is_shown else ""


def _edit_of(request: web.Request, sandbox: Sandbox, path: str) -> Callable[[bytes], bytes] | None:
    length = request.content_length
    is_short = length is not None and length <= _EDITED_BYTES
    is_plain = is_short and not headers.was_decoded(request.headers)
    if request.method != hdrs.METH_POST or not is_plain or path not in rewrite.DIRECTORIES:
        return None
    return partial(rewrite.relocate_body, path, working_dir=sandbox.working_dir)


def _inside(
    request: web.Request, sandbox: Sandbox, place: PortRequest, keys: frozenset[str]
) -> tuple[str, str]:
    own = sandbox.session_key.reveal()

    def is_dropped(name: str, value: str) -> bool:
        # The editor checks the session key itself.
        is_for_editor = name == rewrite.EDITOR_KEY_PARAMETER and value == own
        return value in keys and not is_for_editor

    query = rewrite.drop_parameters(place.query, is_dropped)
    if place.port != AGENT_PORT:
        return place.path, query
    has_editor = any(end.name == EDITOR_PORT for end in sandbox.endpoints)
    editor_url = links_of(request).editor_root(sandbox) if has_editor else None
    return rewrite.to_agent(
        place.path, query, editor_url=editor_url, working_dir=sandbox.working_dir
    )


def _forwarded(request: web.Request, origin: Origin, mount: str) -> dict[str, str]:
    """Return the forwarding headers: Via, X-Forwarded-* and X-Request-Id.

    `mount` is the public path of the port, such as `/agents/sandboxes/ID/agent`.
    """
    before = request.headers.get(hdrs.X_FORWARDED_FOR, "") if is_from_proxy(request) else ""
    forwarded = {
        hdrs.VIA: ", ".join(filter(None, (*request.headers.getall(hdrs.VIA, []), "1.1 agentsvc"))),
        hdrs.X_FORWARDED_FOR: ", ".join(filter(None, (before, request.remote or "unknown"))),
        hdrs.X_FORWARDED_PROTO: origin.scheme,
        hdrs.X_FORWARDED_HOST: origin.host,
        "X-Forwarded-Prefix": mount,
        "X-Request-Id": request.get(REQUEST_ID, ""),
    }
    return {name: value for name, value in forwarded.items() if value}
