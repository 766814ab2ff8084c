"""Verifies signatures of deliveries: Standard Webhooks, GitHub, Forgejo and others.

The key of a delivery identifies repetitions: it is the signed id, or else a hash of the body,
since an unsigned id could be forged.
"""

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Final

from agentsvc.base import NotAuthenticated, Secret, values
from agentsvc.extension.signatures import signature_of

_TOLERANCE_SECONDS: Final = 300
_LONGEST_ID: Final = 255
_HEX_HEADERS: Final = (
    "X-Hub-Signature-256",
    "X-Signature-256",
    "X-Forgejo-Signature",
    "X-Gitea-Signature",
    "X-Hub-Signature",
)


def key_of(headers: Mapping[str, str], body: bytes, secret: Secret, now: datetime) -> str:
    """Verify a delivery's signature and return its key; raises NotAuthenticated."""
    if "webhook-signature" in headers:
        return _standard_key(headers, body, secret, now)
    expected = hmac.digest(secret.reveal().encode(), body, hashlib.sha256).hex()
    for name in _HEX_HEADERS:
        given = headers.get(name, "").removeprefix("sha256=").lower()
        if given.isascii() and hmac.compare_digest(given, expected):
            return f"body:{hashlib.sha256(body).hexdigest()}"
    raise _bad_signature()


def _standard_key(headers: Mapping[str, str], body: bytes, secret: Secret, now: datetime) -> str:
    delivery_id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not 0 < len(delivery_id) <= _LONGEST_ID or not timestamp.isascii():
        raise _bad_signature()
    try:
        expected = signature_of(secret, delivery_id, timestamp, body).encode()
        age = abs(now.timestamp() - int(timestamp[:20]))
    except ValueError:
        raise _bad_signature() from None
    for given in headers.get("webhook-signature", "").split():
        version, _, signature = given.partition(",")
        is_right = hmac.compare_digest(signature.encode(errors="surrogateescape"), expected)
        if version == "v1" and is_right and age <= _TOLERANCE_SECONDS:
            return f"id:{values.sha256(delivery_id) if not delivery_id.isascii() else delivery_id}"
    raise _bad_signature()


def _bad_signature() -> NotAuthenticated:
    return NotAuthenticated("The signature is missing, wrong, or too old")
