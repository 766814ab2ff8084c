"""Decrypts values of an OpenHands server with the keys in its data directory.

It encrypts values as JWE (direct, AES-256-GCM, the key is the SHA-256 of a secret), and formerly as
Fernet; most of its files contain plain values.
"""

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .files import Tree
from .model import Unreadable

_MAX_BYTES: Final = 1024 * 1024
_STARS: Final = re.compile(r"\*{6,}")
_JWE: Final = re.compile(r"eyJ[\w-]+\.\.[\w-]+\.[\w-]*\.[\w-]+")
_FERNET: Final = re.compile(r"gAAAA[\w-]{90,}={0,2}")


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    key: str


class _JweHead(msgspec.Struct, frozen=True, kw_only=True):
    alg: str
    enc: str


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    v: str


_keys: Final = msgspec.json.Decoder(list[_Key])
_jwe_head: Final = msgspec.json.Decoder(_JweHead)
_payload: Final = msgspec.json.Decoder(_Payload)


class SecretOpener:
    """Decrypts values with a set of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._keys = [hashlib.sha256(secret.encode()).digest() for secret in secrets]

    @classmethod
    def of(cls, tree: Tree) -> "SecretOpener":
        """Read the secrets of a server; an invalid key file counts as empty."""
        listed = _read(tree, ".keys", lambda data: [one.key for one in _keys.decode(data)])
        return cls([*listed, *_read(tree, ".jwt_secret", lambda data: [data.decode().strip()])])

    def open(self, text: str) -> str:
        """Decrypt a value if it is encrypted; raises Unreadable if it is masked, or no key fits."""
        if _STARS.fullmatch(text):
            raise Unreadable("was masked before it was stored")
        if _JWE.fullmatch(text):
            return self._first(text, _open_jwe)
        if _FERNET.fullmatch(text):
            return self._first(text, _open_fernet)
        return text

    def open_all(self, value: Any, left_out: list[str], path: str = "") -> Any:
        """Decrypt each string in a JSON value; failed ones are removed and added to `left_out`."""
        if isinstance(value, dict):
            opened = {
                name: self.open_all(item, left_out, f"{path}.{name}" if path else name)
                for name, item in value.items()
            }
            return {name: item for name, item in opened.items() if item is not msgspec.UNSET}
        if isinstance(value, list):
            items = [self.open_all(item, left_out, path) for item in value]
            return [item for item in items if item is not msgspec.UNSET]
        if not isinstance(value, str):
            return value
        try:
            return self.open(value)
        except Unreadable as exc:
            left_out.append(f"`{path[:100]}` {exc}")
            return msgspec.UNSET

    def _first(self, text: str, opened: Any) -> str:
        for key in self._keys:
            found: str | None = opened(text, key)
            if found is not None:
                return found
        raise Unreadable("is encrypted, and its key is missing")


def _read(tree: Tree, name: str, secrets_in: Callable[[bytes], list[str]]) -> list[str]:
    try:
        data = tree.find(name, max_bytes=_MAX_BYTES)
        return [] if data is None else secrets_in(data)
    except (Unreadable, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


def _open_jwe(text: str, key: bytes) -> str | None:
    head, _, nonce, body, tag = text.split(".")
    try:
        header = _jwe_head.decode(_bytes(head))
        if (header.alg, header.enc) != ("dir", "A256GCM"):
            return None
        plain = AESGCM(key).decrypt(_bytes(nonce), _bytes(body) + _bytes(tag), head.encode())
        return _payload.decode(plain).v
    except (InvalidTag, ValueError, msgspec.DecodeError):
        return None


def _open_fernet(text: str, key: bytes) -> str | None:
    try:
        return Fernet(base64.urlsafe_b64encode(key)).decrypt(text.encode()).decode()
    except (InvalidToken, UnicodeDecodeError):
        return None


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "==")
