"""Validates webhook URLs."""

import re
from typing import Final
from urllib.parse import urlsplit

from agentsvc.base import InvalidRequest, NotAllowed
from agentsvc.extension.network import BadHost, is_outside, parse_host

LONGEST_URL: Final = 2048

_HOST: Final = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")


def check_url(url: str, *, allows_private: bool) -> None:
    """Raise InvalidRequest for an invalid URL.

    Raises NotAllowed for a private address, unless those are allowed. The address of a host name is
    checked only when connecting.
    """
    problem = _problem(url)
    if problem:
        raise InvalidRequest(problem, loc=("body", "url"))
    if not allows_private and not _may_be_public(urlsplit(url).hostname or ""):
        raise NotAllowed("The host should be a public address: the operator allows no other")


def _problem(url: str) -> str:
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
        return "A URL with a user name or a password is not allowed"
    if parts.fragment:
        return "A URL with a fragment is not allowed"
    return "" if _HOST.fullmatch(host) else "The host should be a name in ASCII or an address"


def _may_be_public(host: str) -> bool:
    try:
        found = parse_host(host)
    except BadHost:
        return False
    if isinstance(found, str):
        return found != "localhost" and not found.endswith(".localhost")
    return is_outside(found)
