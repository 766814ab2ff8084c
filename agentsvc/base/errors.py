"""Every deliberate error: its code, its HTTP status, and whether a retry may help.

Nothing else raises errors meant for a caller, and nothing but the HTTP middleware turns one
into a response. `message` is written for the caller; `detail` goes to the log only.
"""

import errno
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypedDict, Unpack

import msgspec


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What does not fit in a request, and where."""

    type: str
    """A stable name of the kind of problem, such as `missing` or `string_type`."""
    loc: tuple[str | int, ...]
    """Where: `body`, `query`, `path` or `header`, then names of members and places in arrays."""
    msg: str
    """What would fit, for people."""


class _Details(TypedDict, total=False):
    """What an error may carry beside its message."""

    detail: str
    extra: Mapping[str, Any] | None


class AgentsvcError(Exception):
    """A condition the server foresaw; subclasses say which, in the line that names their parent.

    `extra` holds further members of the response body, for clients that look for them there.
    `retry_after_seconds` is when a retry may help, if one may.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    """Whether the caller may try the same again."""
    may_pass: ClassVar[bool] = False
    """Whether the server itself goes on trying: also where somebody has to do something first."""
    retry_after_seconds: int = 1

    def __init_subclass__(
        cls, *, code: str = "", status: int = 0, retryable: bool = False, **others: Any
    ) -> None:
        super().__init_subclass__(**others)
        # What a subclass leaves out is as its parent has it.
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
        """The message with the detail, which the log alone has."""
        return f"{self.message} {self.detail}".strip()


class InvalidRequest(AgentsvcError, code="invalid_request", status=422):
    """The body, query or path of a request does not fit its description.

    `problems` are all that were found, in the order of the description; there may be more unless
    `is_all`. What is raised for one of them is its message.
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
        """Where the first problem is."""
        return self.problems[0].loc

    @property
    def kind(self) -> str:
        """Of which type the first problem is."""
        return self.problems[0].type

    @classmethod
    def of(
        cls,
        problems: Sequence[Problem],
        *,
        is_all: bool = True,
        extra: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the error that names several problems, at least one."""
        first = problems[0]
        made = cls(first.msg, loc=first.loc, kind=first.type, extra=extra)
        made.problems, made.is_all = tuple(problems), is_all
        return made


class BadRequest(AgentsvcError, code="bad_request", status=400):
    """The request is well formed but means something that cannot be done."""


class MalformedBody(AgentsvcError, code="malformed_body", status=400):
    """The body is not what its headers say: not UTF-8, or a wrong content encoding."""


class BodyTooLarge(AgentsvcError, code="body_too_large", status=413):
    """The body is over the limit."""


class ExportTooLarge(AgentsvcError, code="export_too_large", status=413):
    """What is to be downloaded is over the limit."""


class ArchiveRefused(AgentsvcError, code="archive_refused", status=409):
    """What a sandbox sent of its workspace is broken, or larger than archives may be."""


class UnsupportedMediaType(AgentsvcError, code="unsupported_media_type", status=415):
    """The body is of a media type the operation does not read."""


class NotAuthenticated(AgentsvcError, code="not_authenticated", status=401):
    """No key, an unknown key or a revoked key: one answer for all three."""

    def __init__(self, message: str = "Unauthorized", **more: Unpack[_Details]) -> None:
        super().__init__(message, **more)


class NotAllowed(AgentsvcError, code="not_allowed", status=403):
    """The caller is known and this is not theirs to do."""


class GitTokenMissing(NotAllowed):
    """The user has stored no token for the git provider that is to be asked."""


class NotFound(AgentsvcError, code="not_found", status=404):
    """No such record, one the caller may not see, or no such path."""

    def __init__(self, message: str = "Not Found", **more: Unpack[_Details]) -> None:
        super().__init__(message, **more)


class MethodNotAllowed(AgentsvcError, code="method_not_allowed", status=405):
    """The path exists, the method on it does not.

    `allowed` are the methods that do.
    """

    def __init__(self, *, allowed: Iterable[str]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = tuple(sorted(allowed))


class UnknownHost(AgentsvcError, code="unknown_host", status=421):
    """The request is for a host name that the server does not go by, and shows no key."""


class Conflict(AgentsvcError, code="conflict", status=409):
    """The state of the thing does not allow this now."""


class Unsupported(AgentsvcError, code="unsupported", status=409):
    """The backend lacks the capability."""


class Gone(AgentsvcError, code="gone", status=410):
    """It existed and does not any more."""


class RequestInProgress(AgentsvcError, code="request_in_progress", status=409, retryable=True):
    """A request with the same `Idempotency-Key` is being done."""


class IdempotencyKeyReused(AgentsvcError, code="idempotency_key_reused", status=422):
    """The same `Idempotency-Key` came with another request."""


class OrderRejected(AgentsvcError, code="order_rejected", status=422):
    """The backend will never accept this order."""


class TooManyRequests(AgentsvcError, code="too_many_requests", status=429, retryable=True):
    """The caller is over a limit of its own."""


class SandboxLimitReached(AgentsvcError, code="sandbox_limit_reached", status=429, retryable=True):
    """As many sandboxes run as may, and the caller does not wait for room."""

    retry_after_seconds = 30


class ServiceLimitReached(
    AgentsvcError, code="concurrency_limit_reached", status=429, retryable=True
):
    """As many sandboxes run as may, in the form that services know which act for users.

    `detail` of the body is no text: its member `error` is `CONCURRENCY_LIMIT_REACHED`.
    """

    retry_after_seconds = 30

    def __init__(self, message: str) -> None:
        told = {"error": self.code.upper(), "message": message}
        super().__init__(message, extra={"detail": told})


class QuotaExceeded(AgentsvcError, code="quota_exceeded", status=429, retryable=True):
    """The user has used up a quota of sandboxes, of conversations or of what may be spent."""


class CapacityExceeded(AgentsvcError, code="capacity_exceeded", status=503, retryable=True):
    """Full now, may fit later."""


class StorageFailed(AgentsvcError, code="storage_failed", status=503):
    """The server cannot use its database: it is damaged, or its disk fails."""

    may_pass = True


class DiskFull(StorageFailed, code="disk_full", status=507):
    """The server can store nothing: its disk is full."""


class DatabaseBusy(StorageFailed, code="database_busy", status=503, retryable=True):
    """Another program has locked the server's database, or the server is stopping."""


class BackendUnavailable(AgentsvcError, code="backend_unavailable", status=503, retryable=True):
    """The backend's control plane cannot be reached; nothing is known about its sandboxes."""


class BackendBroken(AgentsvcError, code="backend_broken", status=502):
    """The backend broke its contract."""


class HandleTooNew(AgentsvcError, code="handle_too_new", status=502):
    """The sandbox was made by a newer version of its backend."""


class AgentUnavailable(AgentsvcError, code="agent_unavailable", status=502, retryable=True):
    """The agent server in the sandbox does not answer."""


class AgentRefused(AgentsvcError, code="agent_refused", status=502):
    """The agent server in the sandbox answered and refused."""


class ModelBudgetReached(AgentsvcError, code="model_budget_reached", status=402):
    """A conversation, or its user, has used up what may be spent on language models."""


class ModelUnavailable(AgentsvcError, code="model_unavailable", status=502, retryable=True):
    """The language model of a conversation does not answer, or may not be asked by this server."""


class GitProviderUnavailable(
    AgentsvcError, code="git_provider_unavailable", status=502, retryable=True
):
    """The git hosting service does not answer, or not as expected."""


class SignInUnavailable(AgentsvcError, code="sign_in_unavailable", status=502, retryable=True):
    """A provider by which users sign in does not answer, or not as expected."""


class GitProviderRateLimited(
    AgentsvcError, code="git_provider_rate_limited", status=429, retryable=True
):
    """The git hosting service has had too many requests with the user's token."""


class TimedOut(AgentsvcError, code="timed_out", status=504, retryable=True):
    """The request took longer than requests may."""


class SandboxNotUsable(AgentsvcError, code="sandbox_not_usable", status=503):
    """The sandbox has failed and cannot serve this."""


class SandboxStarting(AgentsvcError, code="sandbox_starting", status=503, retryable=True):
    """The sandbox has not started yet."""


class PortUnavailable(AgentsvcError, code="port_unavailable", status=502, retryable=True):
    """Nothing in the sandbox answers at this port, or not in HTTP."""


class ConversationDeleted(NotFound):
    """The conversation was deleted while something was being done with it."""


class StartRefused(AgentsvcError, code="start_refused", status=409):
    """A conversation cannot be started; the message names the cause and the remedy."""


class StartFailed(AgentsvcError, code="start_failed"):
    """The server cannot start; the message names the cause, the remedy follows as a hint."""

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        super().__init__(message, detail=detail)
        self.hint = hint


HINT_ROOM: Final = "free some space on the disk, then start again"
"""What helps where a disk is full."""

HINT_ACCESS: Final = "check that the file and its directory belong to the user the server runs as"
"""What most often helps where a file cannot be read or made."""


def is_no_room(failure: OSError) -> bool:
    """Say whether something failed because a disk, or what a user may have of it, is full."""
    return failure.errno in (errno.ENOSPC, errno.EDQUOT)


def hint_against(failure: OSError) -> str:
    """Return what helps where a file could not be read or made; "" where its reason says all."""
    if is_no_room(failure):
        return HINT_ROOM
    return HINT_ACCESS if isinstance(failure, PermissionError) else ""


REASON_CHARS: Final = 300
"""How long the first line of a reason is at most: many lists show no more of it."""


def reason_of(cause: str, remedy: str = "", rest: str = "") -> str:
    """Return a reason whose first line has the cause and what to do, in `REASON_CHARS` at most.

    What does not fit of the cause is below that, and so is the rest, such as the end of a log.
    """
    head, _, below = cause.strip().partition("\n")
    remedy = f". {remedy}" if remedy else ""
    room = REASON_CHARS - len(remedy)
    if len(head) > room:
        below = f"{head}\n{below}".strip()
        head = f"{head[: room - 1]}…"
    first = f"{head.rstrip('.') if remedy else head}{remedy}"
    return "\n".join(part for part in (first, below, rest) if part)
