"""Signs the JSON web token of a GitHub App (RS256). Imported on first use."""

from base64 import urlsafe_b64encode
from datetime import datetime
from typing import Any, Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agentsvc.base import InvalidRequest

_MIN_BITS: Final = 2048
_PAST_SECONDS: Final = 60
"""How far GitHub's clock may be behind."""
_SECONDS: Final = 540
"""Validity of the token; GitHub accepts at most ten minutes."""


def signed(app_id: str, private_key: str, moment: datetime) -> str:
    """Return a token that authenticates the App to GitHub for some minutes. Slow."""
    at = int(moment.timestamp())
    claims = {"iat": at - _PAST_SECONDS, "exp": at + _SECONDS, "iss": app_id}
    text = f"{_encoded({'alg': 'RS256', 'typ': 'JWT'})}.{_encoded(claims)}"
    signature = _read_key(private_key).sign(text.encode(), PKCS1v15(), SHA256())
    return f"{text}.{_in_base64(signature)}"


def _read_key(text: str) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(text.encode(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, RSAPrivateKey) or key.key_size < _MIN_BITS:
        raise InvalidRequest(
            f"The key must be RSA of at least {_MIN_BITS} bits, in PEM, without a password",
            loc=("body", "private_key"),
        )
    return key


def _encoded(value: Any) -> str:
    return _in_base64(msgspec.json.encode(value))


def _in_base64(value: bytes) -> str:
    return urlsafe_b64encode(value).rstrip(b"=").decode()
