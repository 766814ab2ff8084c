"""Translates errors of the container engine to domain errors. Pure."""

import re
from typing import Final

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
)

_FULL: Final = re.compile(r"no space left on device|disk quota exceeded|not enough space")
_RUNTIME: Final = re.compile(r"unknown (?:or invalid )?runtime|runtime .*not found|invalid runtime")
_COMMAND: Final = re.compile(
    r"executable file .*not found|exec: .*no such file|no such file or directory.*exec|"
    r"stat [^:]+: no such file|permission denied.*exec|exec format error"
)
_TOO_MANY: Final = re.compile(r"toomanyrequests|too many requests|rate limit")
_NO_ANSWER: Final = re.compile(
    r"no such host|server misbehaving|name resolution|connection refused|i/o timeout|"
    r"deadline exceeded|network is unreachable|no route to host|"
    r"client\.timeout|tls handshake|\beof\b|connection reset|x509"
)
_NO_LOGIN: Final = re.compile(
    r"unauthorized|authentication required|no basic auth|incorrect username or password|"
    r"access forbidden|403 forbidden|denied:"
)
# Registries that hide whether an image exists respond with the last one.
_NO_ACCESS: Final = re.compile(
    r"pull access denied|repository does not exist|name unknown|"
    r"requested access to the resource is denied"
)
_NO_TAG: Final = re.compile(
    r"manifest unknown|manifest for .* not found|not found: manifest|no such tag"
)
_BAD_NAME: Final = re.compile(r"invalid reference format|invalid repository name|invalid tag")
_PLATFORM: Final = re.compile(r"no matching manifest|no match for platform")

NOT_FOUND: Final = 404
CONFLICT: Final = 409

_REFUSED: Final = 400
_LINE_MAX: Final = 300
_PULLS: Final[tuple[tuple[re.Pattern[str], type[AgentsvcError], str], ...]] = (
    (_FULL, CapacityExceeded, "The engine's disk is too full for the image {}: free space there"),
    (
        _TOO_MANY,
        CapacityExceeded,
        "The registry's rate limit is exceeded for the image {}: log in or wait",
    ),
    (_BAD_NAME, OrderRejected, "{} is not a valid image name"),
    (
        _NO_TAG,
        OrderRejected,
        "There is no such tag at the registry: {}; correct the tag or push it",
    ),
    (_PLATFORM, OrderRejected, "The image {} has no variant for the engine's platform"),
    (
        _NO_ACCESS,
        OrderRejected,
        "There is no image {}, or it needs a login: correct the name, or log in and set `auth_file`",
    ),
    (
        _NO_LOGIN,
        OrderRejected,
        "The registry refuses the login for {}: log in again and set `auth_file`",
    ),
    (_NO_ANSWER, BackendUnavailable, "The registry of {} cannot be reached"),
)


def one_line(text: str) -> str:
    """Return a text as one line of limited length."""
    return " ".join(text.split())[:_LINE_MAX]


def from_pull(image: str, message: str) -> AgentsvcError:
    """Return the error for a failed image pull."""
    lowered, detail = message.lower(), one_line(message)
    for pattern, kind, text in _PULLS:
        if pattern.search(lowered):
            return kind(text.format(f"`{image}`"), detail=detail)
    return BackendUnavailable(f"The image `{image}` cannot be pulled: {detail}", detail=detail)


def from_engine(status: int, message: str) -> AgentsvcError:
    """Return the error for an unexpected status of the engine."""
    lowered, detail = message.lower(), one_line(message)
    if _FULL.search(lowered):
        return CapacityExceeded("The engine's disk is full: free space there", detail=detail)
    if _RUNTIME.search(lowered):
        return OrderRejected(f"The engine does not know this runtime: {detail}", detail=detail)
    if _COMMAND.search(lowered):
        return OrderRejected(f"The command cannot be run in this image: {detail}", detail=detail)
    if status == CONFLICT:
        return Conflict(f"The engine refuses: {detail}", detail=detail)
    if status in (_REFUSED, NOT_FOUND):
        return OrderRejected(f"The engine refuses the order: {detail}", detail=detail)
    return BackendUnavailable(f"The engine failed: {detail}", detail=f"HTTP {status}")
