"""Signatures as Standard Webhooks has them: HMAC-SHA256 of id, time and body."""

import base64
import hashlib
import hmac
from datetime import datetime
from typing import Final

from agentsvc import values
from agentsvc.values import Secret

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # how a secret begins, not a secret

_SECRET_BYTES: Final = 32


def new_secret() -> Secret:
    """Return a fresh secret in the form receivers' libraries take."""
    raw = base64.b64encode(values.new_bytes(_SECRET_BYTES)).decode()
    return Secret(SECRET_PREFIX + raw)


def sign(secret: Secret, *, message_id: str, moment: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that let the receiver check who sent a body, and when."""
    key = base64.b64decode(secret.reveal().removeprefix(SECRET_PREFIX))
    timestamp = str(int(moment.timestamp()))
    signed = f"{message_id}.{timestamp}.".encode() + body
    digest = hmac.digest(key, signed, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
