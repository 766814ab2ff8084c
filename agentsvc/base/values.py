"""Ids, UTC time, secrets and page cursors: the small values every module shares.

Imports the standard library and msgspec only. It is the one place that asks the system for a
clock or for randomness.
"""

import base64
import binascii
import hashlib
import os
import re
import secrets
import time
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec

from agentsvc.base.errors import InvalidRequest

MAX_INT: Final = 2**63 - 1
"""The largest integer SQLite stores."""

MASK: Final = "**********"
"""What is shown in place of a secret; sent back, it stands for the stored one."""

_FIXED: Final = 0x4000_8000_0000_0000_0000
_NOT_FIXED: Final = ~0xF000_C000_0000_0000_0000
"""The bits of a UUID that say which kind it is, and the others."""
_ID = re.compile(r"\A[0-9a-f]{32}\Z")
_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
NO_CONTROL: Final = r"\A[^\0-\x1f\x7f]*\Z"
"""A text without control characters, as a pattern."""
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Secret:
    """A string that shows as stars everywhere but where it is deliberately revealed."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; call it only where the value leaves for its destination."""
        return self._value

    def __bool__(self) -> bool:
        return bool(self._value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return secrets.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(("Secret", self._value))

    def __repr__(self) -> str:
        return f"Secret({MASK!r})"

    def __str__(self) -> str:
        return MASK


def without_secrets(text: str, known: Iterable[Secret]) -> str:
    """Return a text with stars for each of these secrets in it."""
    # The longest first: one may begin with another.
    for value in sorted({one.reveal() for one in known if one}, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def stated(**schema: object) -> msgspec.Meta:
    """Return what the description says of a value beyond its type, where a later check holds it."""
    return msgspec.Meta(extra_json_schema=schema)


type SentSecret = Annotated[
    str, msgspec.Meta(extra_json_schema={"format": "password", "writeOnly": True})
]
"""A secret on the wire that clients send and never read."""
type ShownSecret = Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})]
"""A secret on the wire that clients read, such as a key when it is made."""


def now() -> datetime:
    """Return the present moment as an aware UTC datetime with microseconds."""
    return datetime.now(UTC)


def copy_to[T: msgspec.Struct](kind: type[T], source: Any, /, **given: Any) -> T:
    """Return a struct with what a source calls as its fields are called; what is given counts instead."""
    names = [name for name in kind.__struct_fields__ if name not in given and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def view_of[T: msgspec.Struct](kind: type[T], record: Any, /, **given: Any) -> T:
    """Return the same of a record for clients, who get its times as texts."""
    names = [name for name in kind.__struct_fields__ if name not in given and hasattr(record, name)]
    shown = {name: getattr(record, name) for name in names}
    texts = {name: to_stored(it) for name, it in shown.items() if isinstance(it, datetime)}
    return kind(**{**shown, **texts}, **given)


def decoder_of[T](kind: type[T] | msgspec.json.Decoder[T]) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, which is made once, or the one that is given."""
    if isinstance(kind, msgspec.json.Decoder):
        return kind
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def decode_or_none[T](
    body: bytes | msgspec.Raw, kind: type[T] | msgspec.json.Decoder[T]
) -> T | None:
    """Return JSON as a type, or None where it is none, or does not fit."""
    try:
        return decoder_of(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def monotonic() -> float:
    """Return seconds on a clock that never goes back; only differences mean something."""
    return time.monotonic()


def steady_now() -> datetime:
    """Return the moment that it is by the clock of when the process began, however that was put since.

    For deadlines that are set anew when the process is.
    """
    return _CLOCK_ZERO + timedelta(seconds=time.monotonic())


_CLOCK_ZERO: Final = now() - timedelta(seconds=time.monotonic())


def new_id() -> str:
    """Return a fresh random id of 32 hex digits."""
    # What `uuid.uuid4().hex` is, without the object: version 4, variant 1.
    number = int.from_bytes(os.urandom(16)) & _NOT_FIXED | _FIXED
    return f"{number:032x}"


def new_key(prefix: str = "") -> Secret:
    """Return a fresh random key of 43 URL-safe characters behind the prefix."""
    return Secret(prefix + secrets.token_urlsafe(32))


def new_code(length: int) -> str:
    """Return a fresh random code that people can read to each other: no vowels, no look-alikes."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def new_bytes(count: int) -> bytes:
    """Return that many fresh random bytes."""
    return secrets.token_bytes(count)


def spread(least: float) -> float:
    """Return a random number from the least to twice that."""
    return least * (1 + secrets.randbelow(1_000_000) / 1_000_000)


def short_id() -> str:
    """Return a fresh random id of 22 base62 characters."""
    return "".join(secrets.choice(_BASE62) for _ in range(22))


def is_sandbox_id(text: str) -> bool:
    """Return whether a text can be the id of a sandbox, and so name a file of its own."""
    return _SANDBOX_ID.fullmatch(text) is not None


def parse_uuid(text: str) -> str | None:
    """Return the 32 hex digits of a dashed or plain UUID, or None if it is neither."""
    if _ID.match(text):
        return text
    if len(text) not in (32, 36):
        return None
    try:
        parsed = uuid.UUID(text)
    except ValueError:
        return None
    return parsed.hex if text.lower() in (parsed.hex, str(parsed)) else None


def dashed(hex_id: str) -> str:
    """Return the dashed form of 32 hex digits."""
    return str(uuid.UUID(hex_id))


def has_control(text: str) -> bool:
    """Return whether an ASCII control character is in a text, line breaks and tabs among them."""
    return _CONTROL.search(text) is not None


def sha256(text: str) -> str:
    """Return the SHA-256 of a text as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def to_stored(moment: datetime) -> str:
    """Return the form times have in the database: UTC, microseconds, `Z`; sorts as text."""
    # strftime would leave out the zeros of a year before 1000.
    moment = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def stored_or_none(moment: datetime | None) -> str | None:
    """Return the same for a time that there may be none of."""
    return None if moment is None else to_stored(moment)


def from_stored(text: str) -> datetime:
    """Return the aware UTC datetime of a stored text."""
    return datetime.fromisoformat(text)


def moment_or_none(text: str | None) -> datetime | None:
    """Return the same of a text that there may be none of."""
    return None if text is None else from_stored(text)


def parse_time(text: str) -> datetime | None:
    """Return the moment an ISO 8601 text names, naive taken as UTC, or None if it names none."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def encode_cursor(*parts: str | int) -> str:
    """Return an opaque page id that carries the key of the last item of a page."""
    raw = msgspec.json.encode(list(parts))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_cursor(page_id: str, *shape: type) -> tuple[Any, ...]:
    """Return the parts of a page id; raises InvalidRequest unless they have the given types."""
    try:
        raw = base64.b64decode(page_id + "=" * (-len(page_id) % 4), altchars=b"-_", validate=True)
        parts = msgspec.json.decode(raw, type=list[str | int])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        parts = []
    fits = len(parts) == len(shape) and all(
        type(part) is kind for part, kind in zip(parts, shape, strict=True)
    )
    if not fits or any(isinstance(part, int) and abs(part) > MAX_INT for part in parts):
        raise InvalidRequest("page_id is not one this server gave", loc=("query", "page_id"))
    return tuple(parts)
