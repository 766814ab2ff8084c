"""All errors meant for callers: each with its code, its HTTP status, and whether a retry may help.

No other module defines such errors, and only the HTTP middleware turns them into responses.
`message` is written for the caller; `detail` is only logged.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypedDict, Unpack

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of an invalid request, and its location."""

    type: str
    """A stable name of the kind of problem, such as `missing` or `string_type`."""
    loc: tuple[str | int, ...]
    """Where: `body`, `query`, `path` or `header`, then names of members and indexes of arrays."""
    msg: str
    """What would be valid, for people."""


class _Details(TypedDict, total=False):
    """Optional arguments of an error."""

    detail: str
    extra: Mapping[str, Any] | None


class AgentsvcError(Exception):
    """An expected error; each subclass declares its code and status in its class statement.

    `extra` holds further members of the response body, for clients that look for them there.
    `retry_after_seconds` is when a retry may succeed, if the error is retryable.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    """Whether the caller may retry the same request."""
    may_pass: ClassVar[bool] = False
    """Whether the server itself retries, even if an operator may have to act first."""
    retry_after_seconds: int = 1

    def __init_subclass__(
        cls, *, code: str = "", status: int = 0, retryable: bool = False, **others: Any
    ) -> None:
        super().__init_subclass__(**others)
        # Omitted arguments are inherited from the parent class.
        cls.code, cls.status = code or cls.code, status or cls.status
        cls.retryable = retryable or cls.retryable
        cls.may_pass = cls.retryable or cls.may_pass

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        extra: Mapping[str, Any] | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.extra: Mapping[str, Any] = dict(extra or {})
        if retry_after_seconds is not None:
            self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return self.message

    @property
    def log_text(self) -> str:
        """The message and the detail, for the log only."""
        return f"{self.message} {self.detail}".strip()


class InvalidRequest(AgentsvcError, code="invalid_request", status=422):
    """The body, query or path of a request does not match its description.

    `problems` are the problems found, in the order of the description; there may be more unless
    `is_all`. The error's message is that of the first.
    """

    def __init__(
        self,
        message: str,
        *,
        loc: Sequence[str | int] = ("body",),
        kind: str = "value_error",
        detail: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, detail=detail, extra=extra)
        self.problems: tuple[Problem, ...] = (Problem(type=kind, loc=tuple(loc), msg=message),)
        self.is_all = True

    @property
    def loc(self) -> tuple[str | int, ...]:
        """The location of the first problem."""
        return self.problems[0].loc

    @property
    def kind(self) -> str:
        """The type of the first problem."""
        return self.problems[0].type

    @classmethod
    def of(
        cls,
        problems: Sequence[Problem],
        *,
        is_all: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return an error for several problems, at least one."""
        first = problems[0]
        made = cls(first.msg, loc=first.loc, kind=first.type, extra=extra)
        made.problems, made.is_all = tuple(problems), is_all
        return made


class BadRequest(AgentsvcError, code="bad_request", status=400):
    """The request is well formed but asks for something that is not possible."""


class MalformedBody(AgentsvcError, code="malformed_body", status=400):
    """The body does not match its headers: not UTF-8, or a wrong content encoding."""


class BodyTooLarge(AgentsvcError, code="body_too_large", status=413):
    """The body exceeds the size limit."""


class ExportTooLarge(AgentsvcError, code="export_too_large", status=413):
    """The download exceeds the size limit."""


class ArchiveRefused(AgentsvcError, code="archive_refused", status=409):
    """The archive of a workspace that a sandbox sent is corrupt or exceeds the size limit."""


class UnsupportedMediaType(AgentsvcError, code="unsupported_media_type", status=415):
    """The operation does not accept the body's media type."""


class NotAuthenticated(AgentsvcError, code="not_authenticated", status=401):
    """No key, an unknown key or a revoked key: the same response for all three."""

    def __init__(self, message: str = "Unauthorized", **more: Unpack[_Details]) -> None:
        super().__init__(message, **more)


class NotAllowed(AgentsvcError, code="not_allowed", status=403):
    """The caller is authenticated and lacks permission."""


class GitTokenMissing(NotAllowed):
    """The user has stored no token for the requested git provider."""


class NotFound(AgentsvcError, code="not_found", status=404):
    """No such record, or the caller may not see it, or no such path."""

    def __init__(self, message: str = "Not Found", **more: Unpack[_Details]) -> None:
        super().__init__(message, **more)


class MethodNotAllowed(AgentsvcError, code="method_not_allowed", status=405):
    """The path exists, but not with this method.

    `allowed` are its methods.
    """

    def __init__(self, *, allowed: Iterable[str]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = tuple(sorted(allowed))


class UnknownHost(AgentsvcError, code="unknown_host", status=421):
    """The request's host name is not one of the server's, and the request shows no key."""


class Conflict(AgentsvcError, code="conflict", status=409):
    """The current state of the resource does not allow the operation."""


class Unsupported(AgentsvcError, code="unsupported", status=409):
    """The backend lacks the required capability."""


class Gone(AgentsvcError, code="gone", status=410):
    """The resource existed and was removed."""


class RequestInProgress(AgentsvcError, code="request_in_progress", status=409, retryable=True):
    """Another request with the same `Idempotency-Key` is in progress."""


class IdempotencyKeyReused(AgentsvcError, code="idempotency_key_reused", status=422):
    """The `Idempotency-Key` was used for a different request."""


class OrderRejected(AgentsvcError, code="order_rejected", status=422):
    """The backend will never accept this order."""


class TooManyRequests(AgentsvcError, code="too_many_requests", status=429, retryable=True):
    """The caller exceeds one of its rate or concurrency limits."""


class SandboxLimitReached(AgentsvcError, code="sandbox_limit_reached", status=429, retryable=True):
    """The maximum number of sandboxes is running, and the caller does not wait for capacity."""

    retry_after_seconds = 30


class ServiceLimitReached(
    AgentsvcError, code="concurrency_limit_reached", status=429, retryable=True
):
    """The maximum number of sandboxes is running, in the form expected by services that act for users.

    `detail` of the response body is an object, with `error` set to `CONCURRENCY_LIMIT_REACHED`.
    """

    retry_after_seconds = 30

    def __init__(self, message: str) -> None:
        told = {"error": self.code.upper(), "message": message}
        super().__init__(message, extra={"detail": told})


class QuotaExceeded(AgentsvcError, code="quota_exceeded", status=429, retryable=True):
    """The user has reached a quota of sandboxes, of conversations or of spending."""


class CapacityExceeded(AgentsvcError, code="capacity_exceeded", status=503, retryable=True):
    """There is no capacity now; a retry may succeed."""


class StorageFailed(AgentsvcError, code="storage_failed", status=503):
    """The server cannot use its database: it is damaged, or its disk fails."""

    may_pass = True


class DiskFull(StorageFailed, code="disk_full", status=507):
    """The server cannot write: its disk is full."""


class DatabaseBusy(StorageFailed, code="database_busy", status=503, retryable=True):
    """Another program has locked the server's database, or the server is stopping."""


class BackendUnavailable(AgentsvcError, code="backend_unavailable", status=503, retryable=True):
    """The backend's control plane cannot be reached; nothing is known about its sandboxes."""


class BackendBroken(AgentsvcError, code="backend_broken", status=502):
    """The backend broke its contract."""


class HandleTooNew(AgentsvcError, code="handle_too_new", status=502):
    """The sandbox was created by a newer version of its backend."""


class AgentUnavailable(AgentsvcError, code="agent_unavailable", status=502, retryable=True):
    """The agent server in the sandbox does not respond."""


class AgentRefused(AgentsvcError, code="agent_refused", status=502):
    """The agent server in the sandbox rejected the request."""


class ModelBudgetReached(AgentsvcError, code="model_budget_reached", status=402):
    """A conversation, or its user, has reached the budget for language models."""


class ModelUnavailable(AgentsvcError, code="model_unavailable", status=502, retryable=True):
    """The language model of a conversation does not respond, or this server may not call it."""


class GitProviderUnavailable(
    AgentsvcError, code="git_provider_unavailable", status=502, retryable=True
):
    """The git hosting service does not respond, or not as expected."""


class SignInUnavailable(AgentsvcError, code="sign_in_unavailable", status=502, retryable=True):
    """The provider by which users sign in does not respond, or not as expected."""


class GitProviderRateLimited(
    AgentsvcError, code="git_provider_rate_limited", status=429, retryable=True
):
    """The git hosting service has rate-limited the user's token."""


class TimedOut(AgentsvcError, code="timed_out", status=504, retryable=True):
    """The request exceeded its time limit."""


class SandboxNotUsable(AgentsvcError, code="sandbox_not_usable", status=503):
    """The sandbox has failed and cannot serve the request."""


class SandboxStarting(AgentsvcError, code="sandbox_starting", status=503, retryable=True):
    """The sandbox has not started yet."""


class PortUnavailable(AgentsvcError, code="port_unavailable", status=502, retryable=True):
    """Nothing in the sandbox responds at this port, or not with HTTP."""


class ConversationDeleted(NotFound):
    """The conversation was deleted during the operation."""


class StartRefused(AgentsvcError, code="start_refused", status=409):
    """A conversation cannot be started; the message names the cause and the remedy."""


class StartFailed(AgentsvcError, code="start_failed"):
    """The server cannot start; the message names the cause, the hint a remedy."""

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.hint = hint


HINT_ROOM: Final = "free some space on the disk, then start again"
"""The remedy for a full disk."""

HINT_ACCESS: Final = "check that the file and its directory belong to the user the server runs as"
"""The most common remedy if a file cannot be read or created."""


def is_no_room(failure: OSError) -> bool:
    """Return whether an operation failed because a disk or a disk quota is full."""
    return failure.errno in (errno.ENOSPC, errno.EDQUOT)


def hint_against(failure: OSError) -> str:
    """Return the remedy for a file that cannot be read or created; "" if the error says enough."""
    if is_no_room(failure):
        return HINT_ROOM
    return HINT_ACCESS if isinstance(failure, PermissionError) else ""


REASON_CHARS: Final = 300
"""The maximum length of the first line of a reason, of which many lists show no more."""


def reason_of(cause: str, remedy: str = "", rest: str = "") -> str:
    """Return a reason whose first line has the cause and the remedy, in at most `REASON_CHARS`.

    Below it follow the rest of the cause, and `rest`, such as the end of a log.
    """
    head, _, below = cause.strip().partition("\n")
    remedy = f". {remedy}" if remedy else ""
    room = REASON_CHARS - len(remedy)
    if len(head) > room:
        below = f"{head}\n{below}".strip()
        head = f"{head[: room - 1]}…"
    first = f"{head.rstrip('.') if remedy else head}{remedy}"
    return "\n".join(part for part in (first, below, rest) if part)
