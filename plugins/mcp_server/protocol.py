"""The messages of the protocol that a server without sessions needs."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import AgentsvcError, InvalidRequest, NotFound

LATEST: Final = "2025-11-25"
VERSIONS: Final = ("2025-03-26", "2025-06-18", LATEST)
"""The revisions of the protocol with this transport."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
RESOURCE_NOT_FOUND: Final = -32002
_REFUSED: Final = -32000

type Id = Annotated[str, Meta(max_length=255)] | int


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a client: a request, or a notification, which has no `id`.

    A client's response to a request of the server has no `method`; this server sends no requests.
    """

    jsonrpc: Literal["2.0"]
    """Version of JSON-RPC"""
    id: Id | UnsetType = UNSET
    """Id of the request, repeated in the response; omitted for a notification"""
    method: Annotated[str, Meta(max_length=255)] | UnsetType = UNSET
    """Method, such as `tools/call`; omitted in a response"""
    params: dict[str, Any] | UnsetType = UNSET
    """Parameters of the method; omitted if there are none"""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a request."""

    code: int
    """Code of JSON-RPC or of the protocol"""
    message: str
    """Description of the error"""
    data: dict[str, Any]
    """`code` and `status` of the API's error, if it is one"""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The response to a request: a result or an error."""

    jsonrpc: Literal["2.0"] = "2.0"
    """Version of JSON-RPC"""
    id: Id
    """Id of the request"""
    result: dict[str, Any] | UnsetType = UNSET
    """Result, as the protocol defines it; omitted after an error"""
    error: Failure | UnsetType = UNSET
    """Error; omitted after a success"""


class RequestFailed(Exception):
    """A request failed; `failure` is the error for the client."""

    def __init__(self, code: int, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.failure = Failure(code=code, message=message, data=data or {})


def failure_of(error: AgentsvcError) -> RequestFailed:
    """Convert an error of the API to one of the protocol."""
    match error:
        case NotFound():
            code = RESOURCE_NOT_FOUND
        case InvalidRequest():
            code = INVALID_PARAMS
        case _:
            code = _REFUSED
    return RequestFailed(code, error_text(error), {"code": error.code, "status": error.status})


def error_text(error: AgentsvcError) -> str:
    """Return the text of an error, with all problems of invalid arguments."""
    if isinstance(error, InvalidRequest):
        return "; ".join(
            f"{'.'.join(map(str, problem.loc))}: {problem.msg}" for problem in error.problems
        )
    return error.message
