"""Maps errors of the container engine to the server's own. Pure."""

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
_NO_ADDRESS: Final = re.compile(r"no such host|server misbehaving|name resolution")
_NO_ANSWER: Final = re.compile(
    r"connection refused|i/o timeout|deadline exceeded|network is unreachable|no route to host|"
    r"client\.timeout|tls handshake|\beof\b|connection reset|x509"
)
_NO_LOGIN: Final = re.compile(
    r"unauthorized|authentication required|no basic auth|incorrect username or password|"
    r"access forbidden|403 forbidden|denied:"
)
# Registries that keep to themselves what there is say the last.
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


def one_line(text: str) -> str:
    """Return a text as one line of a bearable length."""
    return " ".join(text.split())[:_LINE_MAX]


def from_pull(image: str, message: str) -> AgentsvcError:
    """Return what it means that an image could not be fetched."""
    said, detail = message.lower(), one_line(message)
    tag = f"`{image}`"
    if _FULL.search(said):
        error: AgentsvcError = CapacityExceeded(
            f"The engine's disk is too full for the image {tag}: make room there", detail=detail
        )
    elif _TOO_MANY.search(said):
        error = CapacityExceeded(
            f"The registry gives no more images for now, {tag} among them: log in or wait",
            detail=detail,
        )
    elif _BAD_NAME.search(said):
        error = OrderRejected(f"{tag} is no name of an image", detail=detail)
    elif _NO_TAG.search(said):
        error = OrderRejected(
            f"There is no such tag at the registry: {tag}; correct the tag or push it",
            detail=detail,
        )
    elif _PLATFORM.search(said):
        error = OrderRejected(f"There is no {tag} for the engine's kind of machine", detail=detail)
    elif _NO_ACCESS.search(said):
        error = OrderRejected(
            f"There is no image {tag}, or it needs a login: correct the name,"
            " or log in and set `auth_file`",
            detail=detail,
        )
    elif _NO_LOGIN.search(said):
        error = OrderRejected(
            f"The registry refuses the login for {tag}: log in again and set `auth_file`",
            detail=detail,
        )
    elif _NO_ADDRESS.search(said) or _NO_ANSWER.search(said):
        error = BackendUnavailable(f"The registry of {tag} cannot be reached", detail=detail)
    else:
        error = BackendUnavailable(f"The image {tag} cannot be fetched: {detail}", detail=detail)
    return error


def from_engine(status: int, message: str) -> AgentsvcError:
    """Return what an answer of the engine means that no caller had expected."""
    said, detail = message.lower(), one_line(message)
    if _FULL.search(said):
        return CapacityExceeded("The engine's disk is full: make room there", detail=detail)
    if _RUNTIME.search(said):
        return OrderRejected(f"The engine does not know this runtime: {detail}", detail=detail)
    if _COMMAND.search(said):
        return OrderRejected(f"The command cannot be run in this image: {detail}", detail=detail)
    if status == CONFLICT:
        return Conflict(f"The engine refuses: {detail}", detail=detail)
    if status in (_REFUSED, NOT_FOUND):
        return OrderRejected(f"The engine refuses the order: {detail}", detail=detail)
    return BackendUnavailable(f"The engine failed: {detail}", detail=f"HTTP {status}")
