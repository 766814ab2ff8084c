"""Verifies a token's signature and claims, with joserfc. Imported with the first token."""

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
    """A token is not good; the text says of which kind that is."""


class UnknownKey(BadToken):
    """A token is of a key that is not there: it names it, or no other key has signed it."""


def verify(
    token: str, keys: Sequence[dict[str, Any]], claims: Mapping[str, Any], *, skew: int
) -> dict[str, Any]:
    """Return what a token says; raises BadToken where it does not say what `claims` want."""
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
    """Return a key that signs, or None for one of another use or kind."""
    if shown.get("kty") not in _KEY_TYPES or shown.get("use", "sig") != "sig":
        return None
    try:
        return JWKRegistry.import_key(shown)
    except _BAD:
        return None
