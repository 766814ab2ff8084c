"""Messages that tell users why a conversation failed to start, and what to do. Pure."""

from typing import Final

from agentsvc.base import (
    AgentRefused,
    AgentsvcError,
    AgentUnavailable,
    BackendBroken,
    BackendUnavailable,
    CapacityExceeded,
    Gone,
    OrderRejected,
    SandboxNotUsable,
    Unsupported,
    reason_of,
)
from agentsvc.sandboxes import Sandbox, SandboxStatus

_MISSING_AGENT: Final = ("no module named 'openhands", 'no module named "openhands')
_LONGEST_NAME: Final = 100
START_AGAIN: Final = "Start the conversation again"
_OTHER_SANDBOX: Final = "Leave `sandbox_id` out to get a new sandbox, or name another one"

_REMEDIES: Final[tuple[tuple[type[AgentsvcError], str], ...]] = (
    (AgentRefused, "Change what it names, in the settings or in the request, and start again"),
    (AgentUnavailable, f"{START_AGAIN}; if that does not help, look at the sandbox's log"),
    (BackendBroken, "The server's log has the details; report it to the author of the backend"),
    (
        BackendUnavailable,
        f"{START_AGAIN} once the backend is back; `GET /ready` reports the state of the default one",
    ),
    (CapacityExceeded, "Free some room by deleting or pausing sandboxes, and start again"),
    (OrderRejected, "Choose another sandbox spec, or have its configuration changed"),
    (SandboxNotUsable, _OTHER_SANDBOX),
    (Unsupported, _OTHER_SANDBOX),
    (Gone, _OTHER_SANDBOX),
)


def explain_error(error: AgentsvcError, tail: str) -> str:
    """Return cause and remedy of an error; `tail` is the end of the sandbox's log, or empty."""
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return with_log_tail(reason_of(error.message, remedy), tail)
    # The messages of other errors name the remedy themselves.
    return reason_of(error.message)


def explain_sandbox(sandbox: Sandbox | None, tail: str, time_limit: float) -> str:
    """Return why a start cannot continue with a sandbox in its present state, and what to do."""
    if sandbox is None:
        return f"The sandbox was deleted while it was being waited for. {START_AGAIN}"
    return with_log_tail(_explain_status(sandbox, tail, time_limit), tail)


def _explain_status(sandbox: Sandbox, tail: str, time_limit: float) -> str:
    was_paused = f"The sandbox was paused while it was being waited for. Resume it. {START_AGAIN}"
    match sandbox.status:
        case SandboxStatus.MISSING:
            return f"The sandbox does not exist any more. {START_AGAIN}"
        case SandboxStatus.PAUSED:
            return was_paused
        case SandboxStatus.RUNNING if sandbox.target.is_rest:
            return was_paused
        case SandboxStatus.STARTING:
            return reason_of(
                f"The sandbox did not start within {time_limit:g} s",
                "Raise `conversations.start_seconds` in the server's config if it needs longer."
                f" {START_AGAIN}",
                sandbox.reason,
            )
        case SandboxStatus.RUNNING:
            spec = f"`{sandbox.spec_id}`" if len(sandbox.spec_id) <= _LONGEST_NAME else ""
            return reason_of(
                "The sandbox runs but has no port called `agent`", f"Give its spec {spec} one"
            )
        case SandboxStatus.ERROR:
            return reason_of(
                f"The sandbox failed: {sandbox.reason or 'it gave no reason'}",
                _failure_remedy(f"{tail}{sandbox.reason}".lower()),
            )


def unknown_sandbox(sandbox_id: str) -> str:
    """Return the message for a sandbox id that the user does not have."""
    return reason_of(f"Sandbox not found: {sandbox_id}", _OTHER_SANDBOX)


def with_log_tail(text: str, tail: str) -> str:
    """Append the last lines of a log to a text, unless the text contains them."""
    if not tail or tail in text:
        return text
    return f"{text}\nThe last lines of the sandbox's log:\n{tail}"


def _failure_remedy(text: str) -> str:
    if not any(sign in text for sign in _MISSING_AGENT):
        return f"{START_AGAIN}; resuming the sandbox only retries the same"
    return (
        "The agent server is not installed: install the `agent` extra,"
        " `pip install 'agentsvc[agent]'`, and start the conversation again"
    )
