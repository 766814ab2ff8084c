"""Signatures as Standard Webhooks has them: HMAC-SHA256 of id, time and body."""

import base64
import hashlib
import hmac
from typing import Final

from agentsvc.base import Secret, values

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32


def new_secret() -> Secret:
    """Return a fresh secret in the form libraries take."""
    return Secret(_PREFIX + base64.b64encode(values.new_bytes(_SECRET_BYTES)).decode())


def signature_of(secret: Secret, message_id: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a message, without its version; raises ValueError for no such secret."""
    key = base64.b64decode(secret.reveal().removeprefix(_PREFIX), validate=True)
    signed = f"{message_id}.{timestamp}.".encode(errors="surrogateescape") + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
