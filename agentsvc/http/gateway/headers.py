"""Filters and rewrites headers between a client and a sandbox. Pure.

Hop-by-hop headers are removed (RFC 9110, 7.6.1). Keys of this server do not reach a sandbox; the
headers of a sandbox's responses have no effect outside its own path.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

import msgspec
from aiohttp import hdrs
from multidict import CIMultiDict, CIMultiDictProxy

from agentsvc.accounts import KEY_PREFIX
from agentsvc.base import BadRequest

KEY_HEADER: Final = "X-Session-API-Key"
OWN_COOKIES: Final = ("agentsvc", "__host-agentsvc", "__secure-agentsvc")
"""Prefixes of the names of this server's own cookies, in lower case."""

_HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NEVER_NAMED: Final = frozenset(
    {"content-length", "content-type", "host", "authorization", "cookie"}
)
"""Headers that a Connection header cannot remove, as that would change the message."""
_SET_HERE: Final = frozenset(
    {
        "content-length",
        "expect",
        "forwarded",
        "host",
        "via",
        "x-agentsvc-login",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-ssl",
        "x-real-ip",
        "x-request-id",
        "x-session-api-key",
    }
)
_ORIGIN_WIDE: Final = frozenset(
    {
        "accept-ch",
        "alt-svc",
        "clear-site-data",
        "critical-ch",
        "nel",
        "public-key-pins",
        "report-to",
        "reporting-endpoints",
        "sec-session-registration",
        "secure-session-registration",
        "set-login",
        "strict-transport-security",
        "use-as-dictionary",
    }
)
"""Response headers that a browser would apply to this server's whole origin."""
_KEY_HEADERS: Final = frozenset({"x-access-token", "x-api-key", "x-service-api-key"})
"""Headers that may hold a user's key, but also a key of an application in the sandbox."""
_REPLACED: Final = frozenset({"domain"})
_REPLACED_IN_FRAMES: Final = _REPLACED | {"samesite", "secure", "partitioned"}
_LOCATIONS: Final = frozenset({"location", "content-location"})
_NOT_INWARD: Final = _HOP_BY_HOP | _SET_HERE
_NOT_OUTWARD: Final = _HOP_BY_HOP | _ORIGIN_WIDE | {"content-length"}
_NO_TRAILERS: Final = (
    _HOP_BY_HOP
    | _SET_HERE
    | _ORIGIN_WIDE
    | _LOCATIONS
    | {
        "age",
        "authorization",
        "cache-control",
        "content-encoding",
        "content-range",
        "content-type",
        "cookie",
        "date",
        "expires",
        "max-forwards",
        "origin",
        "pragma",
        "range",
        "referer",
        "retry-after",
        "set-cookie",
        "vary",
        "www-authenticate",
        "x-access-token",
    }
)
"""Fields that are not allowed as trailers: they would escape the checks of the head."""
_NO_TRAILERS_LIKE: Final = ("access-control-", "if-", "sec-", "x-forwarded-")
_CORS: Final = "access-control-"
_DECODED: Final = frozenset({"gzip", "deflate", "br", "zstd"})
_CSP: Final = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


class ResponseScope(msgspec.Struct, frozen=True, kw_only=True):
    """The limits within which a sandbox's response headers may have an effect."""

    upstream: str
    """The sandbox's own address: scheme, host and port."""
    base: str
    """Path of the port at that address; empty unless another gateway is in between."""
    mount: str
    """Public path that its cookies are confined to."""
    prefix: str
    """Public path to prepend to the paths in its locations."""
    is_agent: bool
    """Whether this server, not the sandbox, sets the CORS headers."""
    is_apart: bool = False
    """Whether to isolate its pages by CSP `sandbox`, because they share this server's origin."""
    is_framed: bool = False
    """Whether its cookies are partitioned for use in a frame of another site."""
    cookie: str = ""
    """A Set-Cookie value of this server to add to the response; empty for none."""


def to_sandbox(
    headers: CIMultiDictProxy[str],
    forwarded: Mapping[str, str],
    *,
    keys: AbstractSet[str],
    own_key: str,
    needs_key: bool,
) -> CIMultiDict[str]:
    """Return the headers of a request to the sandbox, including the forwarding headers.

    `keys` are keys of this server, which are removed. `own_key` is the session key: with
    `needs_key`, as for the agent server, it is sent in a header; the editor keeps it in a cookie.
    """
    dropped = _NOT_INWARD | _per_hop(headers) if hdrs.CONNECTION in headers else _NOT_INWARD
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in dropped and not _has_key(lower, value, keys):
            passed.add(name, legible(value))
    if was_decoded(headers):
        passed.popall(hdrs.CONTENT_ENCODING)
    _strip_cookies(passed, keys - {own_key})
    passed.update(forwarded)
    if needs_key:
        passed[KEY_HEADER] = own_key
    if hdrs.TE in headers and _takes_trailers(headers):
        passed[hdrs.TE] = "trailers"
        passed[hdrs.CONNECTION] = "TE"
    return passed


def to_client(headers: CIMultiDictProxy[str], confines: ResponseScope) -> CIMultiDict[str]:
    """Return the headers of a response to the client, without Content-Length."""
    dropped = _NOT_OUTWARD | _per_hop(headers) if hdrs.CONNECTION in headers else _NOT_OUTWARD
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower in dropped or (confines.is_agent and lower.startswith(_CORS)):
            continue
        if confines.base and value == _CSP:
            continue  # isolation is decided here, not by the gateway in between
        confined = _confine(lower, legible(value), confines)
        if confined is not None:
            passed.add(name, confined)
    if confines.is_apart:
        passed.add("Content-Security-Policy", _CSP)
    if confines.cookie:
        passed.add(hdrs.SET_COOKIE, confines.cookie)
    _announce_trailers(headers, passed)
    return passed


def passing_trailers(trailers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the trailers of a response that may be forwarded."""
    return [(name, legible(value)) for name, value in trailers if _may_trail(name)]


def was_decoded(headers: CIMultiDictProxy[str]) -> bool:
    """Whether aiohttp's parser has decoded the content encoding of a request."""
    return headers.get(hdrs.CONTENT_ENCODING, "").lower() in _DECODED


def legible(value: str) -> str:
    """Make a header value encodable: bytes that are not UTF-8 are decoded as Latin-1."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


def to_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Serialize headers; raises BadRequest for line breaks and control characters in them."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    if _CONTROL.search(text) or not len(lines) == text.count("\r") == text.count("\n"):
        raise BadRequest("The headers contain control characters and cannot be forwarded")
    return text.encode("utf-8", "surrogateescape")


def confine_cookie(
    cookie: str, mount: str, *, base: str = "", is_framed: bool = False
) -> str | None:
    """Confine a Set-Cookie value to a path; returns None for one that must not be set.

    An empty `mount` means that the whole host belongs to the sandbox. `base` is the path that
    another gateway has confined it to.
    """
    pair, *attributes = (part.strip() for part in cookie.split(";"))
    name = pair.partition("=")[0].strip().lower()
    if name.startswith(OWN_COOKIES) or (mount and name.startswith("__host-")):
        return None
    kept = []
    path = ""
    for attribute in attributes:
        key, _, value = attribute.partition("=")
        if key.strip().lower() == "path":
            path = value.strip()
        elif key.strip().lower() not in (_REPLACED_IN_FRAMES if is_framed else _REPLACED):
            kept.append(attribute)
    if is_framed:
        kept += ("SameSite=None", "Secure", "Partitioned")
    inner = _strip(path, base) if path.startswith("/") else "/"
    return "; ".join((pair, *kept, f"Path={_add_prefix(inner, mount)}"))


def _takes_trailers(headers: CIMultiDictProxy[str]) -> bool:
    codings = ",".join(headers.getall(hdrs.TE)).lower().split(",")
    return any(coding.strip() == "trailers" for coding in codings)


def _announce_trailers(headers: CIMultiDictProxy[str], passed: CIMultiDict[str]) -> None:
    """Set the Trailer header for a chunked response whose trailers are forwarded."""
    if hdrs.TRAILER not in headers or hdrs.TRANSFER_ENCODING not in headers:
        return
    names = [name.strip() for name in ",".join(headers.getall(hdrs.TRAILER)).split(",")]
    if kept := [legible(name) for name in names if name and _may_trail(name)]:
        passed[hdrs.TRAILER] = ", ".join(kept)


def _may_trail(name: str) -> bool:
    lower = name.lower()
    return lower not in _NO_TRAILERS and not lower.startswith(_NO_TRAILERS_LIKE)


def _per_hop(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Return the hop-by-hop headers that a Connection header names."""
    values = ",".join(headers.getall(hdrs.CONNECTION, []))
    return frozenset(name.strip().lower() for name in values.split(",")) - _NEVER_NAMED


def _has_key(name: str, value: str, keys: AbstractSet[str]) -> bool:
    """Whether a header contains a key of this server."""
    if name == "authorization":
        scheme, _, token = value.partition(" ")
        shown = _user_and_password(token) if scheme.lower() == "basic" else value.split()
        return any(_is_key(part, keys) for part in shown)
    return name in _KEY_HEADERS and _is_key(value.strip(), keys)


def _is_key(text: str, keys: AbstractSet[str]) -> bool:
    # A text with our prefix may be a key that becomes valid again, or is valid on another server.
    return text in keys or text.startswith(KEY_PREFIX)


def _user_and_password(token: str) -> list[str]:
    try:
        return base64.b64decode(token).decode().split(":", 1)
    except ValueError:
        return []


def _strip_cookies(headers: CIMultiDict[str], keys: AbstractSet[str]) -> None:
    """Remove this server's own cookies and cookies that contain a key."""
    if hdrs.COOKIE not in headers:
        return
    cookies = [part.strip() for line in headers.popall(hdrs.COOKIE) for part in line.split(";")]
    kept = [part for part in cookies if part and not _is_own_cookie(part, keys)]
    if kept:
        headers[hdrs.COOKIE] = "; ".join(kept)


def _is_own_cookie(pair: str, keys: AbstractSet[str]) -> bool:
    name, _, value = pair.partition("=")
    return name.lower().startswith(OWN_COOKIES) or _is_key(value.strip().strip('"'), keys)


def _confine(name: str, value: str, confines: ResponseScope) -> str | None:
    if name == "set-cookie":
        mount, base = confines.mount, confines.base
        return confine_cookie(value, mount, base=base, is_framed=confines.is_framed)
    if name == "service-worker-allowed":
        return f"{confines.mount}/"
    if name in _LOCATIONS:
        return _relocate(value, confines)
    return value


def _relocate(location: str, confines: ResponseScope) -> str:
    """Rewrite a location inside the sandbox to its public path; others are unchanged."""
    if location.startswith(confines.upstream):
        rest = location.removeprefix(confines.upstream)
        if not rest or rest[0] in "/?#":
            location = rest if rest.startswith("/") else f"/{rest}"
    if location.startswith("/") and not location.startswith("//"):
        return _add_prefix(_strip(location, confines.base), confines.prefix)
    return location


def _strip(path: str, base: str) -> str:
    """Remove the path prefix of another gateway from a path."""
    rest = path.removeprefix(base)
    if not base or rest == path or (rest and rest[0] not in "/?#"):
        return path
    return rest if rest.startswith("/") else f"/{rest}"


def _add_prefix(path: str, mount: str) -> str:
    """Prepend a mount to a path, unless the application has done so already."""
    is_below = path == mount or path.startswith((f"{mount}/", f"{mount}?"))
    return path if is_below else f"{mount}{path}"
