"""Parses HTTP/1.1 responses of sandboxes (RFC 9112). Pure.

Whatever leaves a doubt about where an answer ends is refused.
"""

import re
from http import HTTPStatus
from typing import Final

import msgspec
from multidict import CIMultiDict, CIMultiDictProxy

from agentsvc.http.gateway.headers import legible
from agentsvc.http.server.chunked import BadChunks, BadField, ChunkReader, read_fields

HEAD_BYTES: Final = 64 * 1024

_STATUS_LINE = re.compile(r"\AHTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\0-\x08\x0a-\x1f\x7f]*))?\Z")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(r"\A[0-9]{1,18}\Z")
_NO_BODY: Final = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class InvalidResponse(Exception):
    """What was answered is no HTTP."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
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

    def feed_end(self) -> None:
        """Take in the end; raises InvalidResponse if it is early."""
        if not self.is_done:
            raise InvalidResponse("the body is shorter than its length")


class EndlessBody(_Body):
    """A body that ends with the connection."""

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return all of it."""
        return [data], b""

    def feed_end(self) -> None:
        """Take in the end."""
        self.is_done = True


class ChunkedBody(_Body):
    """A body in chunks, perhaps with trailers."""

    def __init__(self) -> None:
        self._chunks = ChunkReader()

    def feed(self, data: bytes) -> tuple[list[bytes], bytes]:
        """Return what is in the chunks, and what comes after the last one."""
        try:
            spans, end = self._chunks.feed(data)
            self.trailers = tuple(read_fields(self._chunks.trailers))
        except (BadChunks, BadField) as exc:
            raise InvalidResponse(str(exc)) from exc
        self.is_done = end is not None
        rest = b"" if end is None else data[end:]
        return [data[start:stop] for start, stop in spans], rest

    def feed_end(self) -> None:
        """Take in the end; raises InvalidResponse if it is early."""
        if not self.is_done:
            raise InvalidResponse("the last chunk is missing")


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


def read_head(raw: bytes | bytearray) -> Head:
    """Return what a head says, without the empty line at its end; raises InvalidResponse."""
    first, _, rest = raw.partition(b"\n")
    status = _STATUS_LINE.match(first.removesuffix(b"\r").decode("utf-8", "surrogateescape"))
    if status is None:
        raise InvalidResponse("there is no status line")
    try:
        headers = CIMultiDict(read_fields(rest))
    except BadField as exc:
        raise InvalidResponse("a header is not well-formed") from exc
    return Head(
        status=int(status.group(2)),
        reason=legible(status.group(3) or ""),
        headers=CIMultiDictProxy(headers),
        has_old_version=status.group(1) == "0",
    )


def body_of(head: Head, *, answers_head: bool) -> Body:
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
