"""Limits how many values untrusted JSON may have, before it is decoded. Pure.

A value takes two bytes of JSON and up to a hundred of memory.
"""

from collections.abc import Iterator
from typing import Final

MAX_VALUES: Final = 1_000_000
"""How many values JSON may have to be decoded, what is in its strings aside."""

_PART_BYTES: Final = 64 * 1024


def has_many_values(body: bytes, most: int = MAX_VALUES) -> bool:
    """Whether JSON has more values than may be decoded."""
    # Most bodies are too short for so many, a value and what divides it from the next taken together.
    if len(body) <= 2 * most or _count(body) <= most:
        return False
    return sum(map(_count, outside_strings(body))) > most


def outside_strings(body: bytes) -> Iterator[bytes]:
    """Yield well-formed JSON without what is in its strings, in parts that cut no value.

    What is done for a part takes a moment only, and little memory, however many strings there are.
    """
    start, is_in_string = 0, False
    while start < len(body):
        # A comma ends no escape.
        end = body.find(b",", start + _PART_BYTES) + 1 or len(body)
        plain = body[start:end].replace(rb"\\", b"").replace(rb"\"", b"")
        texts = plain.split(b'"')
        yield b"".join(texts[is_in_string::2])
        is_in_string ^= len(texts) % 2 == 0
        start = end


def _count(part: bytes) -> int:
    return sum(map(part.count, (b",", b"[", b"{")))
