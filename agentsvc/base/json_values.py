"""Limits how many values untrusted JSON may have before it is decoded. Pure.

A value takes as little as two bytes of JSON and up to a hundred bytes of memory.
"""

from collections.abc import Iterator
from typing import Final

MAX_VALUES: Final = 1_000_000
"""The maximum number of values in JSON to be decoded; commas and brackets in strings do not count."""

_PART_BYTES: Final = 64 * 1024


def exceeds_value_limit(body: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether JSON has more values than may be decoded."""
    # Most bodies are too short to have so many: a value takes at least two bytes with its separator.
    if len(body) <= 2 * most or _count(body) <= most:
        return False
    return sum(map(_count, strip_string_contents(body))) > most


def strip_string_contents(body: bytes) -> Iterator[bytes]:
    """Yield well-formed JSON without the contents of its strings, in parts that split no value.

    Each part takes little time and memory, however many strings there are.
    """
    start, is_in_string = 0, False
    while start < len(body):
        # A comma is never part of an escape sequence.
        end = body.find(b",", start + _PART_BYTES) + 1 or len(body)
        plain = body[start:end].replace(rb"\\", b"").replace(rb"\"", b"")
        texts = plain.split(b'"')
        yield b"".join(texts[is_in_string::2])
        is_in_string ^= len(texts) % 2 == 0
        start = end


def _count(part: bytes) -> int:
    return sum(map(part.count, (b",", b"[", b"{")))
