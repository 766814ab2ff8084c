"""The messages of the protocol, as far as a server without sessions needs them."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import AgentsvcError, InvalidRequest, NotFound

LATEST: Final = "2025-11-25"
VERSIONS: Final = ("2025-03-26", "2025-06-18", LATEST)
"""The revisions of the protocol, as far as they have this transport."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
RESOURCE_NOT_FOUND: Final = -32002
_REFUSED: Final = -32000

type Id = Annotated[str, Meta(max_length=255)] | int


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a client: a request, or a notification, which has no `id`.

    The answer of a client to a request of the server has no `method`; this server sends none.
    """

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC"""
    id: Id | UnsetType = UNSET
    """What the answer names; left out for a notification"""
    method: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    """What is asked for, such as `tools/call`; left out in an answer"""
    params: dict[str, Any] | UnsetType = UNSET
    """What the method takes; left out if nothing"""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no result."""

    code: int
    """Code of JSON-RPC or of the protocol"""
    message: str
    """What is wrong, for people"""
    data: dict[str, Any]
    """`code` and `status` as the API names them, where it is one of its errors"""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request: a result, or else an error."""

    jsonrpc: Literal["2.0"] = "2.0"
    """Version of JSON-RPC"""
    id: Id
    """That of the request"""
    result: dict[str, Any] | UnsetType = UNSET
    """What was asked for, as the protocol says; left out where it failed"""
    error: Failure | UnsetType = UNSET
    """Why it failed; left out where it did not"""


class RequestFailed(Exception):
    """A request that has no result."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, data=data or {})


def failure_of(error: AgentsvcError) -> RequestFailed:
    """Return what says in the protocol what an error says in the API."""
    match error:
        case NotFound():
            code = RESOURCE_NOT_FOUND
        case InvalidRequest():
            code = INVALID_PARAMS
        case _:
            code = _REFUSED
    return RequestFailed(code, error_text(error), {"code": error.code, "status": error.status})


def error_text(error: AgentsvcError) -> str:
    """Return what an error says, for an agent to mend."""
    if isinstance(error, InvalidRequest):
        return "; ".join(
            f"{'.'.join(map(str, problem.loc))}: {problem.msg}" for problem in error.problems
        )
    return error.message
