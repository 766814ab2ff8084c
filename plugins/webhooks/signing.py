"""Signatures as Standard Webhooks has them: HMAC-SHA256 of id, time and body."""

import base64
import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from agentsvc.base import Secret, values

SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # how a secret begins, not a secret

_SECRET_BYTES: Final = 32


def new_secret() -> Secret:
    """Return a fresh secret in the form receivers' libraries take."""
    raw = base64.b64encode(values.new_bytes(_SECRET_BYTES)).decode()
    return Secret(SECRET_PREFIX + raw)


def sign(
    secrets: Sequence[Secret], *, message_id: str, moment: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers that let the receiver check who sent a body, and when.

    There is a signature for each secret, so that a receiver may have any one of them.
    """
    timestamp = str(int(moment.timestamp()))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(_signature(secret, signed) for secret in secrets),
    }


def _signature(secret: Secret, signed: bytes) -> str:
    key = base64.b64decode(secret.reveal().removeprefix(SECRET_PREFIX))
    digest = hmac.digest(key, signed, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"
