"""The head of a proxy request: size limits, parsing, and rewriting for the target."""

import re
from dataclasses import dataclass
from typing import Final

from .addresses import Address, BadHost, parse_host, split_port

HEAD_MAX: Final = 32768
"""The maximum size of the request line and headers together, in bytes."""

_METHOD = re.compile(r"[A-Za-z]{1,20}")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*")
_TARGET = re.compile(r"[\x21-\x7e\x80-\U0010ffff]+")
_OF_THIS_HOP: Final = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection"}
)
_HTTP_PORT: Final = 80


class BadHead(ValueError):
    """A request that the proxy cannot serve; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """A parsed request: its target, and the head to forward."""

    method: str
    host: str | Address
    port: int
    forward: bytes = b""
    """The head to send to the target; empty for a tunnel."""

    @property
    def is_tunnel(self) -> bool:
        """Whether bytes are forwarded unchanged after the response, as for CONNECT."""
        return self.method == "CONNECT"


def parse_head(data: bytes) -> RequestHead:
    """Parse a request head up to its empty line; raises BadHead or BadHost."""
    first, *lines = data.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = first.decode("utf-8", "surrogateescape").split(" ")
    if len(parts) != 3 or parts[2] not in ("HTTP/1.0", "HTTP/1.1"):  # noqa: PLR2004  # of a request line
        raise BadHead("it is not a request of HTTP/1.1")
    method, target, _ = parts
    if _METHOD.fullmatch(method) is None or _TARGET.fullmatch(target) is None:
        raise BadHead("its first line is not a request line of HTTP")
    if method.upper() == "CONNECT":
        host, port = split_port(target)
        if port is None:
            raise BadHost("CONNECT needs a port")
        return RequestHead(method="CONNECT", host=parse_host(host), port=port)
    return _parse_plain(method, target, lines)


def refusal(status: str, text: str) -> bytes:
    """Return a response of the proxy itself, in plain text."""
    body = f"agentsvc: {text}\n".encode(errors="replace")
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def _parse_plain(method: str, target: str, lines: list[bytes]) -> RequestHead:
    scheme, found, rest = target.partition("://")
    if not found or scheme.lower() != "http":
        raise BadHead("this is a proxy: it takes CONNECT and `http://` URLs")
    cut = min((at for mark in "/?#" if (at := rest.find(mark)) >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:].partition("#")[0]
    if "@" in authority or "\\" in authority:
        raise BadHead("its URL contains a user name")
    name, port = split_port(authority)
    host = parse_host(name)
    if not path.startswith("/"):
        path = f"/{path}"
    shown = name if port is None else f"{name}:{port}"
    head = [
        f"{method} {path} HTTP/1.1".encode("utf-8", "surrogateescape"),
        b"Host: " + shown.encode("utf-8", "surrogateescape"),
        *_passed_on(lines),
    ]
    forward = b"\r\n".join(head) + b"\r\n\r\n"
    return RequestHead(method=method.upper(), host=host, port=port or _HTTP_PORT, forward=forward)


def _passed_on(lines: list[bytes]) -> list[bytes]:
    kept = []
    is_upgrade = False
    for line in lines:
        if _HEADER.fullmatch(line) is None:
            raise BadHead("one of its header lines is malformed")
        name = line.partition(b":")[0].lower()
        is_upgrade = is_upgrade or name == b"upgrade"
        if name not in _OF_THIS_HOP:
            kept.append(line)
    # One request per connection: the next may be for another host, which the policy has to check.
    return [*kept, b"Connection: Upgrade" if is_upgrade else b"Connection: close"]
