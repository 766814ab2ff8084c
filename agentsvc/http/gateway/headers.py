"""Forwards and rewrites headers between a client and a sandbox. Pure.

What concerns one connection stays on it, as RFC 9110 (7.6.1) has it. Keys that open this server
do not reach a sandbox; what a sandbox answers has no effect outside its own path.
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
"""How the names of this server's own cookies begin, in lower case."""

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
"""What a Connection header cannot take away: it would change what the message says."""
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
_FOR_THE_ORIGIN: Final = frozenset(
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
"""What a browser would apply to the whole of this server, not to one sandbox."""
_KEY_HEADERS: Final = frozenset({"x-access-token", "x-api-key", "x-service-api-key"})
"""Where clients show a user's key, though applications in sandboxes have keys of their own there."""
_REPLACED: Final = frozenset({"domain"})
_REPLACED_IN_FRAMES: Final = _REPLACED | {"samesite", "secure", "partitioned"}
_LOCATIONS: Final = frozenset({"location", "content-location"})
_DROPPED_INWARD: Final = _HOP_BY_HOP | _SET_HERE
_DROPPED_OUTWARD: Final = _HOP_BY_HOP | _FOR_THE_ORIGIN | {"content-length"}
_NO_TRAILERS: Final = (
    _HOP_BY_HOP
    | _SET_HERE
    | _FOR_THE_ORIGIN
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
"""What counts before a body only: behind it, it would come too late to be checked."""
_NO_TRAILERS_LIKE: Final = ("access-control-", "if-", "sec-", "x-forwarded-")
_CORS: Final = "access-control-"
_DECODED: Final = frozenset({"gzip", "deflate", "br", "zstd"})
_APART: Final = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts"
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")


class CookieScope(msgspec.Struct, frozen=True, kw_only=True):
    """Where what a sandbox answers may have an effect."""

    upstream: str
    """The sandbox's own address: scheme, host and port."""
    base: str
    """The path below which the sandbox's port lies there; empty but behind another gateway."""
    mount: str
    """The public path below which its cookies are."""
    prefix: str
    """The public path that stands before the paths it knows."""
    is_agent: bool
    """Whether this server, not the sandbox, says which other origins may read the answer."""
    is_apart: bool = False
    """Whether a page is kept apart from those of this server, whose origin it would have."""
    is_framed: bool = False
    """Whether its cookies have to hold inside a page of another site, and there alone."""
    cookie: str = ""
    """A cookie of this server's that the answer sets."""


def to_sandbox(
    headers: CIMultiDictProxy[str],
    told: Mapping[str, str],
    *,
    keys: AbstractSet[str],
    own_key: str,
    needs_key: bool,
) -> CIMultiDict[str]:
    """Return the headers of a request as the sandbox gets them, with what it is told of the client's own.

    `keys` open this server and are left out. `own_key` is the sandbox's: where it is needed, as by
    the agent server, it is shown in the header; the editor keeps it in a cookie.
    """
    dropped = _DROPPED_INWARD | _named(headers) if hdrs.CONNECTION in headers else _DROPPED_INWARD
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower not in dropped and not _shows(lower, value, keys):
            passed.add(name, legible(value))
    if was_decoded(headers):
        passed.popall(hdrs.CONTENT_ENCODING)
    _strip_cookies(passed, keys - {own_key})
    passed.update(told)
    if needs_key:
        passed[KEY_HEADER] = own_key
    if hdrs.TE in headers and _takes_trailers(headers):
        passed[hdrs.TE] = "trailers"
        passed[hdrs.CONNECTION] = "TE"
    return passed


def to_client(headers: CIMultiDictProxy[str], confines: CookieScope) -> CIMultiDict[str]:
    """Return the headers of an answer as the client gets them, its length aside."""
    dropped = _DROPPED_OUTWARD | _named(headers) if hdrs.CONNECTION in headers else _DROPPED_OUTWARD
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower in dropped or (confines.is_agent and lower.startswith(_CORS)):
            continue
        if confines.base and value == _APART:
            continue  # whether it is apart here is not for a gateway on the way to say
        confined = _confine(lower, legible(value), confines)
        if confined is not None:
            passed.add(name, confined)
    if confines.is_apart:
        passed.add("Content-Security-Policy", _APART)
    if confines.cookie:
        passed.add(hdrs.SET_COOKIE, confines.cookie)
    _announce_trailers(headers, passed)
    return passed


def passing_trailers(trailers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the trailers of an answer that may pass."""
    return [(name, legible(value)) for name, value in trailers if _may_trail(name)]


def was_decoded(headers: CIMultiDictProxy[str]) -> bool:
    """Whether the server's parser has undone the content encoding of a request."""
    return headers.get(hdrs.CONTENT_ENCODING, "").lower() in _DECODED


def legible(value: str) -> str:
    """Return a header's value so that it can be sent: what is not UTF-8 is taken for Latin-1."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


def to_lines(headers: Iterable[tuple[str, str]]) -> bytes:
    """Return headers as they are sent; raises BadRequest if one could be taken for two."""
    lines = [f"{name}: {value}\r\n" for name, value in headers]
    text = "".join(lines)
    if _CONTROL.search(text) or not len(lines) == text.count("\r") == text.count("\n"):
        raise BadRequest("The headers cannot be passed on as they are")
    return text.encode("utf-8", "surrogateescape")


def confine_cookie(
    cookie: str, mount: str, *, base: str = "", is_framed: bool = False
) -> str | None:
    """Return a Set-Cookie value that holds below a path only; None for one that must not be set.

    Without a path the whole host is the sandbox's. `base` is the path it was confined to already.
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
    inner = _without(path, base) if path.startswith("/") else "/"
    return "; ".join((pair, *kept, f"Path={_below(inner, mount)}"))


def _takes_trailers(headers: CIMultiDictProxy[str]) -> bool:
    codings = ",".join(headers.getall(hdrs.TE)).lower().split(",")
    return any(coding.strip() == "trailers" for coding in codings)


def _announce_trailers(headers: CIMultiDictProxy[str], passed: CIMultiDict[str]) -> None:
    """Name the trailers that are to come, if there is a body that can have any."""
    if hdrs.TRAILER not in headers or hdrs.TRANSFER_ENCODING not in headers:
        return
    names = [name.strip() for name in ",".join(headers.getall(hdrs.TRAILER)).split(",")]
    if kept := [legible(name) for name in names if name and _may_trail(name)]:
        passed[hdrs.TRAILER] = ", ".join(kept)


def _may_trail(name: str) -> bool:
    lower = name.lower()
    return lower not in _NO_TRAILERS and not lower.startswith(_NO_TRAILERS_LIKE)


def _named(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Return the headers that the Connection header says are for one connection only."""
    values = ",".join(headers.getall(hdrs.CONNECTION, []))
    return frozenset(name.strip().lower() for name in values.split(",")) - _NEVER_NAMED


def _shows(name: str, value: str, keys: AbstractSet[str]) -> bool:
    """Whether a header shows a key that opens this server."""
    if name == "authorization":
        scheme, _, token = value.partition(" ")
        shown = _user_and_password(token) if scheme.lower() == "basic" else value.split()
        return any(_is_key(part, keys) for part in shown)
    return name in _KEY_HEADERS and _is_key(value.strip(), keys)


def _is_key(text: str, keys: AbstractSet[str]) -> bool:
    # One that looks like ours may be good again, or be good elsewhere.
    return text in keys or text.startswith(KEY_PREFIX)


def _user_and_password(token: str) -> list[str]:
    try:
        return base64.b64decode(token).decode().split(":", 1)
    except ValueError:
        return []


def _strip_cookies(headers: CIMultiDict[str], keys: AbstractSet[str]) -> None:
    """Leave out this server's own cookies, and whatever shows a key."""
    if hdrs.COOKIE not in headers:
        return
    cookies = [part.strip() for line in headers.popall(hdrs.COOKIE) for part in line.split(";")]
    kept = [part for part in cookies if part and not _is_own_cookie(part, keys)]
    if kept:
        headers[hdrs.COOKIE] = "; ".join(kept)


def _is_own_cookie(pair: str, keys: AbstractSet[str]) -> bool:
    name, _, value = pair.partition("=")
    return name.lower().startswith(OWN_COOKIES) or _is_key(value.strip().strip('"'), keys)


def _confine(name: str, value: str, confines: CookieScope) -> str | None:
    if name == "set-cookie":
        mount, base = confines.mount, confines.base
        return confine_cookie(value, mount, base=base, is_framed=confines.is_framed)
    if name == "service-worker-allowed":
        return f"{confines.mount}/"
    if name in _LOCATIONS:
        return _relocate(value, confines)
    return value


def _relocate(location: str, confines: CookieScope) -> str:
    """Return a location inside the sandbox as the client reaches it; any other is left alone."""
    if location.startswith(confines.upstream):
        rest = location.removeprefix(confines.upstream)
        if not rest or rest[0] in "/?#":
            location = rest if rest.startswith("/") else f"/{rest}"
    if location.startswith("/") and not location.startswith("//"):
        return _below(_without(location, confines.base), confines.prefix)
    return location


def _without(path: str, base: str) -> str:
    """Return a path as the sandbox itself knows it, without that of a gateway before it."""
    rest = path.removeprefix(base)
    if not base or rest == path or (rest and rest[0] not in "/?#"):
        return path
    return rest if rest.startswith("/") else f"/{rest}"


def _below(path: str, mount: str) -> str:
    """Return a path as it is below a mount; an application may know its mount already."""
    is_below = path == mount or path.startswith((f"{mount}/", f"{mount}?"))
    return path if is_below else f"{mount}{path}"
