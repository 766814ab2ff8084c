"""Signatures as in Standard Webhooks: HMAC-SHA256 of id, time and body."""

import base64
import hashlib
import hmac
from typing import Final

from agentsvc.base import Secret, values

_PREFIX: Final = "whsec_"
_SECRET_BYTES: Final = 32


def new_secret() -> Secret:
    """Return a random secret in the format of Standard Webhooks libraries."""
    return Secret(_PREFIX + base64.b64encode(values.new_bytes(_SECRET_BYTES)).decode())


def signature_of(secret: Secret, message_id: str, timestamp: str, body: bytes) -> str:
    """Sign a message, without the version prefix; raises ValueError for a malformed secret."""
    key = base64.b64decode(secret.reveal().removeprefix(_PREFIX), validate=True)
    signed = f"{message_id}.{timestamp}.".encode(errors="surrogateescape") + body
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
