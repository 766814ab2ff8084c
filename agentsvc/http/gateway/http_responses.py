"""Parses HTTP/1.1 responses of sandboxes (RFC 9112). Pure.

Responses whose end is ambiguous are rejected.
"""

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import Final

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from agentsvc.http.gateway.headers import legible

HEAD_BYTES: Final = 64 * 1024

_STATUS_LINE = re.compile(r"\AHTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\0-\x08\x0a-\x1f\x7f]*))?\Z")
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0-\x08\x0a-\x1f\x7f]*)")
_SIZE_LINE = re.compile(rb"\A([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t \x21-\x7e\x80-\xff]*)?\Z")
_LINE_BYTES: Final = 4096
_TRAILER_BYTES: Final = 16 * 1024
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(r"\A[0-9]{1,18}\Z")
_NO_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class InvalidResponse(Exception):
    """A response is not valid HTTP/1.1."""


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """Status line and headers of a response."""

    status: int
    reason: str
    headers: CIMultiDictProxy[str]
    has_old_version: bool
    """Whether it is HTTP/1.0, where the connection closes after the response."""

    @property
    def is_interim(self) -> bool:
        """Whether this is an interim response (1xx except 101), after which another one follows."""
        return self.status < HTTPStatus.OK and self.status != HTTPStatus.SWITCHING_PROTOCOLS

    @property
    def may_be_followed(self) -> bool:
        """Whether the connection can be reused after the body was read."""
        options = ",".join(self.headers.getall("Connection", ())).lower()
        is_final = self.status >= HTTPStatus.OK
        return is_final and not self.has_old_version and "close" not in options


class _Body:
    """Parser of a response body."""

    is_done = False
    trailers: tuple[tuple[str, str], ...] = ()

    def feed_end(self) -> None:
        """Handle the end of the connection; raises InvalidResponse if the body is incomplete."""
        if not self.is_done:
            raise InvalidResponse("the body ends early")


class SizedBody(_Body):
    """Parser of a body with a Content-Length."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.is_done = length == 0

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Split bytes into parts of the body and what follows it."""
        part, rest = data[: self.left], data[self.left :]
        self.skip(len(part))
        return [part] if part else [], rest

    def skip(self, count: int) -> None:
        """Count bytes of the body that were transferred without `feed`."""
        self.left -= count
        self.is_done = not self.left


class EndlessBody(_Body):
    """Parser of a body that ends with the connection."""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return all bytes as one part."""
        return [data], b""

    def feed_end(self) -> None:
        """Mark the body as complete."""
        self.is_done = True


class ChunkedBody(_Body):
    """Parser of a chunked body with optional trailers (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self._left = 0
        self._partial_line = b""
        self._is_after_chunk = False
        self._is_in_trailers = False
        self._trailer_bytes = 0
        self._trailers: list[tuple[str, str]] = []

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return the data of the chunks, and the bytes after the body."""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._left:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                self._is_after_chunk = not self._left
                continue
            line, at = self._line(data, at)
            if line is not None and self._parse_line(line):
                self.is_done, self.trailers = True, tuple(self._trailers)
                return parts, data[at:]
        return parts, b""

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return a complete line or None, and the position after it; buffers an incomplete line."""
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        line = self._partial_line + data[at:stop]
        if len(line) > _LINE_BYTES:
            raise InvalidResponse("a line is too long")
        if end < 0:
            self._partial_line = line
            return None, stop
        self._partial_line = b""
        if not line.endswith(b"\r\n"):
            raise InvalidResponse("a line does not end with CRLF")
        return line[:-2], stop

    def _parse_line(self, line: bytes) -> bool:
        """Parse a line; returns whether it was the last one of the body."""
        if self._is_in_trailers:
            return self._parse_trailer(line)
        if self._is_after_chunk:
            if line:
                raise InvalidResponse("a chunk is longer than its size")
            self._is_after_chunk = False
            return False
        size = _SIZE_LINE.match(line)
        if size is None:
            raise InvalidResponse("a chunk has no size")
        self._left = int(size.group(1), 16)
        self._is_in_trailers = not self._left
        return False

    def _parse_trailer(self, line: bytes) -> bool:
        if not line:
            return True
        if line.endswith(b"\r"):
            raise InvalidResponse("a trailer is not well-formed")
        self._trailer_bytes += len(line) + len(b"\r\n")
        if self._trailer_bytes > _TRAILER_BYTES:
            raise InvalidResponse("the trailers are too long")
        self._trailers += _read_fields(line)
        return False


type Body = SizedBody | EndlessBody | ChunkedBody
"""Incremental parser of a response body; `feed` and `feed_end` raise InvalidResponse."""


def find_end(raw: bytes | bytearray) -> tuple[int, int] | None:
    """Return the end of a head and the start of the body; None if the head is incomplete.

    Raises InvalidResponse if the head is too long.
    """
    found = _HEAD_END.search(raw)
    if (found.start() if found else len(raw)) > HEAD_BYTES:
        raise InvalidResponse("the head is too long")
    return found.span() if found else None


def read_head(raw: bytes | bytearray) -> ResponseHead:
    """Parse a head without its final empty line; raises InvalidResponse."""
    first, _, rest = raw.partition(b"\n")
    status = _STATUS_LINE.match(first.removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    if status is None:
        raise InvalidResponse("the status line is invalid")
    headers = CIMultiDict(_read_fields(rest))
    return ResponseHead(
        status=int(status.group(2)),
        reason=legible(status.group(3) or ""),
        headers=CIMultiDictProxy(headers),
        has_old_version=status.group(1) == "0",
    )


def body_of(head: ResponseHead, *, answers_head: bool) -> Body:
    """Return the parser for a response's body; raises InvalidResponse if its end is ambiguous."""
    codings = ",".join(head.headers.getall("Transfer-Encoding", ())).strip().lower()
    lengths = set(head.headers.getall("Content-Length", ()))
    if len(lengths) > 1 or (codings and lengths) or not all(map(_LENGTH.match, lengths)):
        raise InvalidResponse("the body length is ambiguous")
    if codings and (codings != "chunked" or head.has_old_version):
        raise InvalidResponse("the transfer coding is unknown")
    if answers_head or head.status in _NO_BODY:
        return SizedBody(0)
    if codings:
        return ChunkedBody()
    return SizedBody(int(lengths.pop())) if lengths else EndlessBody()


def _read_fields(raw: bytes | bytearray) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each field; raises InvalidResponse.

    Folded lines (obsolete) and whitespace before the colon are invalid.
    """
    for line in raw.decode("utf-8", "surrogateescape").split("\n") if raw else ():
        found = _FIELD.fullmatch(line.removesuffix("\r"))
        if found is None:
            raise InvalidResponse("a header is not well-formed")
        yield found.group(1), found.group(2).rstrip(" \t")
