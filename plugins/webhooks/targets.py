"""Which URLs a user may register; where a name leads is looked at when something is delivered."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import SplitResult, urlsplit

from agentsvc.errors import InvalidRequest
from agentsvc.extension.network import BadHost, is_outside, parse_host

LONGEST_URL: Final = 2048

_URL_LOC: Final = ("body", "url")
_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


def check_url(url: str, *, allows_private: bool, loc: Sequence[str | int] = _URL_LOC) -> str:
    """Return a URL that may be registered; raises InvalidRequest for any other.

    Of a host that is a name only the connection will tell where it leads.
    """
    problem = _problem(url, allows_private=allows_private)
    if problem:
        raise InvalidRequest(problem, loc=loc)
    return url


def _problem(url: str, *, allows_private: bool) -> str:
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or " " in url:
        return f"Input should be a URL of at most {LONGEST_URL} printable ASCII characters"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "Input should be a URL"
    if parts.scheme not in ("http", "https") or not host or "\\" in url or port == 0:
        return "Input should be a URL that begins with http:// or https:// and a host"
    if parts.username is not None or parts.password is not None:
        return "A URL with a user name or a password is not taken"
    return _host_problem(parts, host, allows_private=allows_private)


def _host_problem(parts: SplitResult, host: str, *, allows_private: bool) -> str:
    if parts.fragment:
        return "A URL with a fragment is not taken"
    if not _HOST.fullmatch(host):
        return "The host should be a name in ASCII or an address"
    return "" if allows_private or _may_be_outside(host) else "The host should be a public address"


def _may_be_outside(host: str) -> bool:
    try:
        found = parse_host(host)
    except BadHost:
        return False
    if isinstance(found, str):
        return found != "localhost" and not found.endswith(".localhost")
    return is_outside(found)
