"""What people are told when a conversation did not start: the cause, and what to do. Pure."""

from typing import Final

from agentsvc.errors import (
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
)
from agentsvc.sandboxes import Sandbox, SandboxStatus

_MISSING_AGENT: Final = ("no module named 'openhands", 'no module named "openhands')
_ANEW: Final = "Start the conversation anew"
_OTHER_SANDBOX: Final = "Leave `sandbox_id` out to get a new sandbox, or name another one"

_REMEDIES: Final[tuple[tuple[type[AgentsvcError], str], ...]] = (
    (AgentRefused, "Change what it names, in the settings or in the request, and start anew"),
    (AgentUnavailable, f"{_ANEW}; if that does not help, look at the sandbox's log"),
    (BackendBroken, "The server's log has the details; report it to the author of the backend"),
    (
        BackendUnavailable,
        f"{_ANEW} once the backend is back; `GET /ready` tells of the default one",
    ),
    (CapacityExceeded, "Free some room by deleting or pausing sandboxes, and start anew"),
    (OrderRejected, "Choose another sandbox spec, or have its configuration changed"),
    (SandboxNotUsable, _OTHER_SANDBOX),
    (Unsupported, _OTHER_SANDBOX),
    (Gone, _OTHER_SANDBOX),
)


def explain_error(error: AgentsvcError, tail: str) -> str:
    """Return cause and remedy; `tail` is the end of the sandbox's log, if there is one."""
    for kind, remedy in _REMEDIES:
        if isinstance(error, kind):
            return with_tail(f"{error.message}. {remedy}", tail)
    # The others name their remedy themselves.
    return error.message


def explain_sandbox(sandbox: Sandbox | None, tail: str, time_limit: float) -> str:
    """Return why a start cannot go on with a sandbox as it is now, and what to do."""
    if sandbox is None:
        return f"The sandbox was deleted while it was being waited for. {_ANEW}"
    return with_tail(_explain_status(sandbox, tail, time_limit), tail)


def _explain_status(sandbox: Sandbox, tail: str, time_limit: float) -> str:
    was_paused = f"The sandbox was paused while it was being waited for. Resume it. {_ANEW}"
    match sandbox.status:
        case SandboxStatus.MISSING:
            return f"The sandbox does not exist any more. {_ANEW}"
        case SandboxStatus.PAUSED:
            return was_paused
        case SandboxStatus.RUNNING if sandbox.target.is_rest:
            return was_paused
        case SandboxStatus.STARTING:
            why = f" ({sandbox.reason})" if sandbox.reason else ""
            return (
                f"The sandbox did not start within {time_limit:g} s{why}. Raise"
                f" `conversations.start_seconds` in the server's config if it needs longer. {_ANEW}"
            )
        case SandboxStatus.RUNNING:
            return (
                "The sandbox runs but has no port called `agent`. Give its spec"
                f" `{sandbox.spec_id}` one"
            )
        case SandboxStatus.ERROR:
            text = f"The sandbox failed: {sandbox.reason or 'it gave no reason'}"
            return text + _failure_remedy(f"{tail}{sandbox.reason}".lower())


def unknown_sandbox(sandbox_id: str) -> str:
    """Return what to do about the id of a sandbox that the user does not have."""
    return f"Sandbox not found: {sandbox_id}. {_OTHER_SANDBOX}"


def with_tail(text: str, tail: str) -> str:
    """Return the text with the last lines of a log below it, unless it has them already."""
    if not tail or tail in text:
        return text
    return f"{text}\nThe last lines of the sandbox's log:\n{tail}"


def _failure_remedy(text: str) -> str:
    if not any(sign in text for sign in _MISSING_AGENT):
        return f"\n{_ANEW}; resuming the sandbox tries the same once more"
    return (
        "\nThe agent server is not installed: install the `agent` extra,"
        " `pip install 'agentsvc[agent]'`, and start the conversation anew"
    )
