"""The headers that sign a delivery."""

from collections.abc import Sequence
from datetime import datetime

from agentsvc.base import Secret
from agentsvc.extension.signatures import signature_of


def sign(
    secrets: Sequence[Secret], *, message_id: str, moment: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers by which the receiver verifies the sender and the time of a body.

    There is a signature for each secret, so that the receiver may know any one of them.
    """
    timestamp = str(int(moment.timestamp()))
    signatures = [signature_of(secret, message_id, timestamp, body) for secret in secrets]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(f"v1,{one}" for one in signatures),
    }
