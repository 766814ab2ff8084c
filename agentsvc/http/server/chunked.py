"""Parses chunked bodies and their trailers (RFC 9112, 7.1). Pure."""

import re
from collections.abc import Iterator
from typing import Final

_LINE_BYTES: Final = 4096
_TRAILER_BYTES: Final = 16 * 1024
_FIELD = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\0-\x08\x0a-\x1f\x7f]*)")
_SIZE_LINE = re.compile(rb"\A([0-9A-Fa-f]{1,15})[ \t]*(?:;[\t \x21-\x7e\x80-\xff]*)?\Z")


class BadChunks(Exception):
    """Something is no body in chunks."""


class BadField(Exception):
    """Something is no line of a header."""


def read_fields(raw: bytes | bytearray) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each line; raises BadField.

    Lines that go on in the next one are not well-formed any more, and neither is a blank before
    the colon.
    """
    for line in raw.decode("utf-8", "surrogateescape").split("\n") if raw else ():
        found = _FIELD.fullmatch(line.removesuffix("\r"))
        if found is None:
            raise BadField
        yield found.group(1), found.group(2).rstrip(" \t")


class ChunkReader:
    """Follows a body in chunks as it comes; it keeps nothing of it but the trailers."""

    def __init__(self) -> None:
        self.body_bytes = 0
        """How much of what is in the chunks has come."""
        self.trailers = b""
        """The lines behind the last chunk, once that has come, without the end of the last one."""
        self._left = 0
        self._kept = b""
        self._is_after_chunk = False
        self._is_in_trailers = False

    def feed(self, data: bytes) -> tuple[list[tuple[int, int]], int | None]:
        """Return where the parts are in these bytes, and where the body ends if it does.

        Not to be called again after the end. Raises BadChunks.
        """
        spans: list[tuple[int, int]] = []
        at = 0
        while at < len(data):
            if self._left:
                stop = min(len(data), at + self._left)
                spans.append((at, stop))
                self.body_bytes += stop - at
                self._left -= stop - at
                self._is_after_chunk = not self._left
                at = stop
                continue
            line, at = self._line(data, at)
            if line is not None and self._takes_last(line):
                return spans, at
        return spans, None

    def _line(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Return a whole line without its end, and where the next one begins."""
        end = data.find(b"\n", at)
        stop = len(data) if end < 0 else end + 1
        line = self._kept + data[at:stop]
        if len(line) > _LINE_BYTES:
            raise BadChunks("a line is too long")
        if end < 0:
            self._kept = line
            return None, stop
        self._kept = b""
        if not line.endswith(b"\r\n"):
            raise BadChunks("a line does not end as lines do")
        return line[:-2], stop

    def _takes_last(self, line: bytes) -> bool:
        """Take in a line and tell whether it is the last one."""
        if self._is_in_trailers:
            return self._takes_trailer(line)
        if self._is_after_chunk:
            if line:
                raise BadChunks("a chunk is longer than its size")
            self._is_after_chunk = False
            return False
        size = _SIZE_LINE.match(line)
        if size is None:
            raise BadChunks("a chunk has no size")
        self._left = int(size.group(1), 16)
        self._is_in_trailers = not self._left
        return False

    def _takes_trailer(self, line: bytes) -> bool:
        if not line:
            return True
        self.trailers = self.trailers + b"\r\n" + line if self.trailers else line
        if len(self.trailers) > _TRAILER_BYTES:
            raise BadChunks("the trailers are too long")
        return False
