"""Ids, UTC time, secrets and page cursors: small values that every module shares.

Imports the standard library, msgspec and `errors` only. The server reads the clock and generates
random values only here; programs that run in sandboxes do so by themselves.
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
"""Shown in place of a secret; if a client sends it back, the stored secret is kept."""

_UUID_BITS: Final = 0x4000_8000_0000_0000_0000
_UUID_MASK: Final = ~0xF000_C000_0000_0000_0000
"""The version and variant bits of a UUID (4 and 1), and the mask of all other bits."""
_ID = re.compile(r"\A[0-9a-f]{32}\Z")
_SANDBOX_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
NO_CONTROL: Final = r"\A[^\0-\x1f\x7f]*\Z"
"""The pattern of a text without control characters."""
_LETTERS = "BCDFGHJKLMNPQRSTVWXZ"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class Secret:
    """A string that prints as stars unless it is deliberately revealed."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the value; call it only to send or to store it."""
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
    """Return a text with these secrets replaced by stars."""
    # The longest first, because one secret may begin with another.
    for value in sorted({one.reveal() for one in known if one}, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


def stated(**schema: object) -> msgspec.Meta:
    """Return extra JSON schema for a value that is validated later than by its type."""
    return msgspec.Meta(extra_json_schema=schema)


type SentSecret = Annotated[
    str, msgspec.Meta(extra_json_schema={"format": "password", "writeOnly": True})
]
"""A secret in a request, which clients cannot read back."""
type ShownSecret = Annotated[str, msgspec.Meta(extra_json_schema={"format": "password"})]
"""A secret in a response, such as a newly created key."""


def now() -> datetime:
    """Return the present moment as an aware UTC datetime with microseconds."""
    return datetime.now(UTC)


def copy_to[T: msgspec.Struct](kind: type[T], source: Any, /, **given: Any) -> T:
    """Return a struct whose fields are attributes of `source`; `given` takes precedence."""
    names = [name for name in kind.__struct_fields__ if name not in given and hasattr(source, name)]
    return kind(**{name: getattr(source, name) for name in names}, **given)


def view_of[T: msgspec.Struct](kind: type[T], record: Any, /, **given: Any) -> T:
    """Return a struct for clients, as `copy_to` does, with times as texts."""
    names = [name for name in kind.__struct_fields__ if name not in given and hasattr(record, name)]
    shown = {name: getattr(record, name) for name in names}
    texts = {name: to_stored(it) for name, it in shown.items() if isinstance(it, datetime)}
    return kind(**{**shown, **texts}, **given)


def decoder_of[T](kind: type[T] | msgspec.json.Decoder[T]) -> msgspec.json.Decoder[T]:
    """Return the cached decoder of a type; a decoder is returned as it is."""
    if isinstance(kind, msgspec.json.Decoder):
        return kind
    if kind not in _decoders:
        _decoders[kind] = msgspec.json.Decoder(kind)
    return _decoders[kind]


def decode_or_none[T](
    body: bytes | msgspec.Raw, kind: type[T] | msgspec.json.Decoder[T]
) -> T | None:
    """Decode JSON as a type; return None if it is malformed or does not match."""
    try:
        return decoder_of(kind).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


_decoders: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def monotonic() -> float:
    """Return the seconds of a clock that never goes back; only differences have a meaning."""
    return time.monotonic()


def steady_now() -> datetime:
    """Return the current time by the system clock as it was set when the process started.

    For deadlines that are set again when the process restarts.
    """
    return _CLOCK_ZERO + timedelta(seconds=time.monotonic())


_CLOCK_ZERO: Final = now() - timedelta(seconds=time.monotonic())


def new_id() -> str:
    """Return a random id of 32 hex digits."""
    # The same as `uuid.uuid4().hex`, without creating an object: version 4, variant 1.
    number = int.from_bytes(os.urandom(16)) & _UUID_MASK | _UUID_BITS
    return f"{number:032x}"


def new_key(prefix: str = "") -> Secret:
    """Return a random key: the prefix and 43 URL-safe characters."""
    return Secret(prefix + secrets.token_urlsafe(32))


def new_code(length: int) -> str:
    """Return a random code that people can read out: no vowels, no look-alikes."""
    return "".join(secrets.choice(_LETTERS) for _ in range(length))


def new_bytes(count: int) -> bytes:
    """Return random bytes."""
    return secrets.token_bytes(count)


def spread(least: float) -> float:
    """Return a random number between `least` and twice that."""
    return least * (1 + secrets.randbelow(1_000_000) / 1_000_000)


def short_id() -> str:
    """Return a random id of 22 base62 characters."""
    return "".join(secrets.choice(_BASE62) for _ in range(22))


def is_sandbox_id(text: str) -> bool:
    """Return whether a text can be a sandbox id, which is also safe as a file name."""
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
    """Return whether a text contains an ASCII control character, such as a line break or a tab."""
    return _CONTROL.search(text) is not None


def sha256(text: str) -> str:
    """Return the SHA-256 of a text as 64 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def to_stored(moment: datetime) -> str:
    """Format a time as stored in the database: UTC, microseconds, `Z`; sorts as text."""
    # strftime would omit the leading zeros of years before 1000.
    moment = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def stored_or_none(moment: datetime | None) -> str | None:
    """Format a time as `to_stored` does; None stays None."""
    return None if moment is None else to_stored(moment)


def from_stored(text: str) -> datetime:
    """Parse a stored time as an aware UTC datetime."""
    return datetime.fromisoformat(text)


def moment_or_none(text: str | None) -> datetime | None:
    """Parse a stored time; None stays None."""
    return None if text is None else from_stored(text)


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time, naive taken as UTC; return None if it is malformed."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def encode_cursor(*parts: str | int) -> str:
    """Return an opaque page id with the key of the last item of a page."""
    raw = msgspec.json.encode(list(parts))
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode_cursor(page_id: str, *shape: type) -> tuple[Any, ...]:
    """Parse a page id; raises InvalidRequest unless its parts have the given types."""
    try:
        raw = base64.b64decode(page_id + "=" * (-len(page_id) % 4), altchars=b"-_", validate=True)
        parts = msgspec.json.decode(raw, type=list[str | int])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        parts = []
    fits = len(parts) == len(shape) and all(
        type(part) is kind for part, kind in zip(parts, shape, strict=True)
    )
    if not fits or any(isinstance(part, int) and abs(part) > MAX_INT for part in parts):
        raise InvalidRequest("page_id is not a valid `next_page_id`", loc=("query", "page_id"))
    return tuple(parts)
