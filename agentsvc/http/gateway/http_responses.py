"""Parses HTTP/1.1 responses of sandboxes (RFC 9112). Pure.

Whatever leaves a doubt about where an answer ends is refused.
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
    """What was answered is no HTTP."""


class ResponseHead(msgspec.Struct, frozen=True, kw_only=True):
    """What stands before the body of an answer."""

    status: int
    reason: str
    headers: CIMultiDictProxy[str]
    has_old_version: bool
    """Whether it is HTTP/1.0, where a connection ends with the answer."""

    @property
    def is_interim(self) -> bool:
        """Whether another answer follows: this one only says that it takes a while."""
        return self.status < HTTPStatus.OK and self.status != HTTPStatus.SWITCHING_PROTOCOLS

    @property
    def may_be_followed(self) -> bool:
        """Whether the connection can be used again, once the body has been read to its end."""
        options = ",".join(self.headers.getall("Connection", ())).lower()
        is_final = self.status >= HTTPStatus.OK
        return is_final and not self.has_old_version and "close" not in options


class _Body:
    """The body of an answer."""

    is_done = False
    trailers: tuple[tuple[str, str], ...] = ()

    def feed_end(self) -> None:
        """Take in the end; raises InvalidResponse if it is early."""
        if not self.is_done:
            raise InvalidResponse("the body ends early")


class SizedBody(_Body):
    """A body of a known length."""

    def __init__(self, length: int) -> None:
        self.left = length
        self.is_done = length == 0

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return what belongs to the body and what does not."""
        part, rest = data[: self.left], data[self.left :]
        self.skip(len(part))
        return [part] if part else [], rest

    def skip(self, count: int) -> None:
        """Take in that so much of it went another way."""
        self.left -= count
        self.is_done = not self.left


class EndlessBody(_Body):
    """A body that ends with the connection."""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return all of it."""
        return [data], b""

    def feed_end(self) -> None:
        """Take in the end."""
        self.is_done = True


class ChunkedBody(_Body):
    """A body in chunks, perhaps with trailers (RFC 9112, 7.1)."""

    def __init__(self) -> None:
        self._left = 0
        self._kept = b""
        self._is_after_chunk = False
        self._is_in_trailers = False
        self._trailer_bytes = 0
        self._trailers: list[tuple[str, str]] = []

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return what is in the chunks, and what comes after the last one."""
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
            if line is not None and self._takes_last(line):
                self.is_done, self.trailers = True, tuple(self._trailers)
                return parts, data[at:]
        return parts, b""

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return a whole line without its end, and where the next one begins."""
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        line = self._kept + data[at:stop]
        if len(line) > _LINE_BYTES:
            raise InvalidResponse("a line is too long")
        if end < 0:
            self._kept = line
            return None, stop
        self._kept = b""
        if not line.endswith(b"\r\n"):
            raise InvalidResponse("a line does not end as lines do")
        return line[:-2], stop

    def _takes_last(self, line: bytes) -> bool:
        """Take in a line and tell whether it is the last one."""
        if self._is_in_trailers:
            return self._takes_trailer(line)
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

    def _takes_trailer(self, line: bytes) -> bool:
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
"""Tells which of the bytes that come belong to a body; both of its methods raise InvalidResponse."""


def find_end(raw: bytes | bytearray) -> tuple[int, int] | None:
    """Return where a head ends and where what follows begins; None if the end is missing.

    Raises InvalidResponse if it is too long.
    """
    found = _HEAD_END.search(raw)
    if (found.start() if found else len(raw)) > HEAD_BYTES:
        raise InvalidResponse("the head is too long")
    return found.span() if found else None


def read_head(raw: bytes | bytearray) -> ResponseHead:
    """Return what a head says, without the empty line at its end; raises InvalidResponse."""
    first, _, rest = raw.partition(b"\n")
    status = _STATUS_LINE.match(first.removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    if status is None:
        raise InvalidResponse("there is no status line")
    headers = CIMultiDict(_read_fields(rest))
    return ResponseHead(
        status=int(status.group(2)),
        reason=legible(status.group(3) or ""),
        headers=CIMultiDictProxy(headers),
        has_old_version=status.group(1) == "0",
    )


def body_of(head: ResponseHead, *, answers_head: bool) -> Body:
    """Return what reads the body of an answer; raises InvalidResponse if it is unclear where that ends."""
    codings = ",".join(head.headers.getall("Transfer-Encoding", ())).strip().lower()
    lengths = set(head.headers.getall("Content-Length", ()))
    if len(lengths) > 1 or (codings and lengths) or not all(map(_LENGTH.match, lengths)):
        raise InvalidResponse("the length is not clear")
    if codings and (codings != "chunked" or head.has_old_version):
        raise InvalidResponse("the transfer coding is unknown")
    if answers_head or head.status in _NO_BODY:
        return SizedBody(0)
    if codings:
        return ChunkedBody()
    return SizedBody(int(lengths.pop())) if lengths else EndlessBody()


def _read_fields(raw: bytes | bytearray) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line; raises InvalidResponse.

    Lines that go on in the next one are not well-formed any more, and neither is a blank before
    the colon.
    """
    for line in raw.decode("utf-8", "surrogateescape").split("\n") if raw else ():
        found = _FIELD.fullmatch(line.removesuffix("\r"))
        if found is None:
            raise InvalidResponse("a header is not well-formed")
        yield found.group(1), found.group(2).rstrip(" \t")
