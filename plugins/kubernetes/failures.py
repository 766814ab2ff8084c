"""Maps errors of the Kubernetes API to this server's errors. Pure."""

import re
from http import HTTPStatus
from typing import Any, Final

from agentsvc.base import (
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
)

_NO_NAMESPACE: Final = re.compile(r'namespaces "[^"]*" not found')
_BUSY_QUOTA: Final = re.compile(r"resourcequotas")
_LINE_MAX: Final = 400
_LACKS_NAMESPACE: Final = "The cluster does not have the namespace: make it, or correct `namespace`"


class Outdated(BackendUnavailable):
    """The API server no longer has the changes since a resource version; a new list is needed."""


_BY_STATUS: Final[dict[int, tuple[type[AgentsvcError], str]]] = {
    HTTPStatus.BAD_REQUEST: (OrderRejected, "The cluster refuses the order: {}"),
    HTTPStatus.UNAUTHORIZED: (
        BackendUnavailable,
        "The cluster does not take the credentials: log in again, or correct `kubeconfig`",
    ),
    HTTPStatus.NOT_FOUND: (OrderRejected, "The cluster lacks what the order needs: {}"),
    HTTPStatus.CONFLICT: (Conflict, "The cluster refuses: {}"),
    HTTPStatus.GONE: (Outdated, "The API server has forgotten what happened since then"),
    HTTPStatus.UNPROCESSABLE_ENTITY: (OrderRejected, "The cluster refuses the order: {}"),
}

_REFUSALS: Final[tuple[tuple[re.Pattern[str], type[AgentsvcError], str], ...]] = (
    (
        re.compile(r"exceeded quota|insufficient quota"),
        CapacityExceeded,
        "The namespace's quota is used up: delete or pause sandboxes, or raise it: {}",
    ),
    (
        re.compile(r"failed quota|must specify "),
        OrderRejected,
        "The namespace's quota wants limits: give the spec `cpus` and `memory_bytes`: {}",
    ),
    (
        re.compile(r"violates podsecurity|podsecuritypolicy|unable to validate against"),
        OrderRejected,
        "The namespace's pod security standard refuses the pod: {}",
    ),
    (
        re.compile(r"(maximum|minimum) .* usage per|limit.to.request ratio"),
        OrderRejected,
        "The namespace's limit range refuses the pod: {}",
    ),
    (
        re.compile(r"being terminated"),
        BackendUnavailable,
        "The namespace is being deleted: use another: {}",
    ),
    (
        re.compile(r"no api token found"),
        BackendUnavailable,
        "The cluster has just made the namespace and is not done with it: {}",
    ),
    (
        re.compile(r"(runtimeclass|priority ?class|storageclass|service account)\b.*not found"),
        OrderRejected,
        "The cluster lacks what the order names: {}",
    ),
    (
        re.compile(r"admission webhook .* denied"),
        OrderRejected,
        "A rule of the cluster refuses the order: {}",
    ),
    (
        re.compile(r"cannot [a-z]+ resource"),
        BackendUnavailable,
        "This server may not do that in the cluster: apply the Role of plugins/kubernetes: {}",
    ),
)


def one_line(text: str) -> str:
    """Return a text as one line, truncated to 400 characters."""
    return " ".join(text.split())[:_LINE_MAX]


def from_api(status: int, said: Any) -> AgentsvcError:
    """Return the error for a response of the API server with an unexpected status."""
    text = str(said.get("message") or "") if isinstance(said, dict) else str(said)
    line, lower = one_line(text), text.lower()
    if status == HTTPStatus.FORBIDDEN:
        return _forbidden(line, lower)
    kind: type[AgentsvcError]
    if status == HTTPStatus.NOT_FOUND and _NO_NAMESPACE.search(lower):
        kind, message = BackendUnavailable, _LACKS_NAMESPACE
    elif status == HTTPStatus.CONFLICT and _BUSY_QUOTA.search(lower):
        kind, message = BackendUnavailable, "The namespace's quota is being counted"
    else:
        kind, message = _BY_STATUS.get(status, (BackendUnavailable, "The API server failed: {}"))
    return kind(message.format(line or "no reason given"), detail=f"HTTP {status}: {line}")


def _forbidden(line: str, lower: str) -> AgentsvcError:
    for pattern, kind, message in _REFUSALS:
        if pattern.search(lower):
            return kind(message.format(line), detail=line)
    return OrderRejected(f"The cluster forbids it: {line}", detail=line)


def from_pull(message: str) -> tuple[bool, str]:
    """Return whether a failed image pull is permanent, and what an operator can do about it."""
    said = message.lower()
    for pattern, is_final, advice in _PULLS:
        if pattern.search(said):
            return is_final, advice
    return False, "look at the registry"


_PULLS: Final = (
    (
        re.compile(r"toomanyrequests|too many requests|rate limit"),
        False,
        "the registry gives no more images for now: log in by `image_pull_secrets`, or wait",
    ),
    (
        re.compile(r"manifest unknown|manifest for .* not found|no such tag|: not found"),
        True,
        "there is no such image or tag: correct the name, or push it",
    ),
    (
        re.compile(r"no matching manifest|no match for platform"),
        True,
        "there is none for this kind of machine: build it, or choose nodes by `node_selector`",
    ),
    (
        re.compile(
            r"pull access denied|repository does not exist|name unknown|"
            r"requested access to the resource is denied|unauthorized|authentication required|"
            r"no basic auth|403 forbidden|denied:"
        ),
        True,
        "there is no such image, or it needs a login: correct the name or `image_pull_secrets`",
    ),
    (
        re.compile(r"no space left on device|disk quota exceeded"),
        False,
        "the node's disk is full: make room there",
    ),
    (
        re.compile(
            r"no such host|server misbehaving|name resolution|connection refused|i/o timeout|"
            r"deadline exceeded|unreachable|no route to host|tls|\beof\b|connection reset|x509"
        ),
        False,
        "the registry cannot be reached from the node: look at its network",
    ),
)
