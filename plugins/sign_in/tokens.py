"""Verifies a token's signature and claims, with joserfc. Imported on first use."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
from joserfc import jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import JWKRegistry, Key, KeySet

_ALGORITHMS: Final = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "Ed25519", "EdDSA"),
]
_KEY_TYPES: Final = ("RSA", "EC", "OKP")
_BAD: Final = (JoseError, ValueError, TypeError, LookupError)


class BadToken(Exception):
    """A token is invalid; the text is the type of the error."""


class UnknownKey(BadToken):
    """The key of a token is unknown: its key id is not listed, or no listed key verifies it."""


def verify(
    token: str, keys: Sequence[dict[str, Any]], claims: Mapping[str, Any], *, skew: int
) -> dict[str, Any]:
    """Return the claims of a token; raises BadToken unless they meet the required `claims`."""
    try:
        found = jwt.decode(token, _key_set(msgspec.json.encode(keys)), _ALGORITHMS)
        jwt.JWTClaimsRegistry(leeway=skew, **claims).validate(found.claims)
    except (BadSignatureError, InvalidKeyIdError, LookupError) as exc:
        raise UnknownKey(type(exc).__name__) from exc
    except _BAD as exc:
        raise BadToken(type(exc).__name__) from exc
    return found.claims


@lru_cache(maxsize=16)
def _key_set(shown: bytes) -> KeySet:
    found = msgspec.json.decode(shown, type=list[dict[str, Any]])
    return KeySet([key for one in found if (key := _key_of(one)) is not None])


def _key_of(shown: dict[str, Any]) -> Key | None:
    """Import a key for signatures, or return None for one of another use or type."""
    if shown.get("kty") not in _KEY_TYPES or shown.get("use", "sig") != "sig":
        return None
    try:
        return JWKRegistry.import_key(shown)
    except _BAD:
        return None
