"""Encrypts secrets for storage, and manages the master key file.

AES-256-GCM. A sealed value can be opened only with the key and the context it was sealed with, so
a value that is copied to another row or another user cannot be opened there.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import stat
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agentsvc.base import AgentsvcError, StartFailed, hint_against, replace_private, values

log = logging.getLogger(__name__)

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_KEY_ID_BYTES: Final = 4
_VERSION: Final = b"\x01"
_HEAD_BYTES: Final = len(_VERSION) + _KEY_ID_BYTES


class Vault:
    """One master key in memory.

    A sealed value is a version byte, four bytes of the key's id, a nonce, and the ciphertext.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self._source = hmac.digest(key, b"agentsvc derived keys", "sha256")
        self._head = _VERSION + hashlib.sha256(b"agentsvc key id" + key).digest()[:_KEY_ID_BYTES]

    @property
    def key_id(self) -> str:
        """An identifier of the key that does not reveal it; part of each sealed value."""
        return self._head[len(_VERSION) :].hex()

    @classmethod
    def open(cls, key_file: Path) -> "Vault":
        """Read the master key, created with mode 0600 if the file is absent.

        Raises StartFailed, with a hint, if the file cannot be read or created, or holds no key.
        """
        try:
            if not key_file.exists():
                # Written atomically: half a key would make the next start fail.
                replace_private(key_file, f"{values.new_key().reveal()}\n")
                log.info("master key created", extra={"path": str(key_file)})
            if stat.S_IMODE(key_file.stat().st_mode) & 0o077:
                log.warning(
                    "master key file is readable by other users", extra={"path": str(key_file)}
                )
            text = key_file.read_bytes()
        except OSError as exc:
            raise StartFailed(
                f"the master key cannot be read or created ({exc.strerror}): {key_file}",
                hint=hint_against(exc),
                detail=str(exc),
            ) from exc
        return cls(_parse_key(text, key_file))

    def seal(self, plain: bytes, context: str) -> bytes:
        """Encrypt a value; sealing it twice gives different results."""
        nonce = values.new_bytes(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, plain, self._head + context.encode())
        return self._head + nonce + sealed

    def derive(self, context: str) -> str:
        """Derive a key from the master key and a context; always the same."""
        made = hmac.digest(self._source, context.encode(), "sha256")
        return base64.urlsafe_b64encode(made).decode().rstrip("=")

    def unseal(self, sealed: bytes, context: str) -> bytes:
        """Decrypt the result of `seal` for the same context.

        Raises AgentsvcError if it was sealed with another key or context, or was changed.
        """
        body = _HEAD_BYTES + _NONCE_BYTES
        head, nonce = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES:body]
        if head != self._head:
            raise AgentsvcError(
                "a stored secret was sealed with another master key; restore that key file",
                detail=f"context {context}",
            )
        try:
            return self._cipher.decrypt(nonce, sealed[body:], head + context.encode())
        except (InvalidTag, ValueError) as exc:
            raise AgentsvcError(
                "a stored secret is damaged; store it again", detail=f"context {context}"
            ) from exc


def _parse_key(text: bytes, key_file: Path) -> bytes:
    try:
        key = base64.b64decode(text.strip() + b"=", altchars=b"-_", validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        raise StartFailed(
            f"the master key file does not hold a key: {key_file}",
            hint="restore it from a backup; without it the stored secrets cannot be read, and the"
            " server starts only with another --data-dir",
        )
    return key
