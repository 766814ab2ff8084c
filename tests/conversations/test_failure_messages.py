"""What people are told of a start that failed names the cause and what to do."""

import msgspec
import pytest

from agentsvc.agentserver.responses import CommandResult
from agentsvc.base import errors
from agentsvc.base.errors import REASON_CHARS, reason_of
from agentsvc.conversations.starting.failure import (
    explain_error,
    explain_sandbox,
    unknown_sandbox,
    with_log_tail,
)
from agentsvc.conversations.starting.workspace import Clone, clone_failure
from agentsvc.plugin.backend import Phase
from agentsvc.sandboxes import Target
from tests.sandboxes.test_state import sandbox


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.AgentUnavailable("no answer"), "Start the conversation again"),
        (errors.AgentRefused("no answer"), "Change what it names"),
        (errors.BackendBroken("no answer"), "The server's log has the details"),
        (errors.BackendUnavailable("no answer"), "once the backend is back"),
        (errors.CapacityExceeded("no answer"), "Free some room"),
        (errors.OrderRejected("no answer"), "Choose another sandbox spec"),
        (errors.SandboxNotUsable("no answer"), "Leave `sandbox_id` out"),
        (errors.Unsupported("no answer"), "Leave `sandbox_id` out"),
        (errors.Gone("no answer"), "Leave `sandbox_id` out"),
    ],
)
def test_an_error_is_told_with_a_remedy_and_the_end_of_the_log(
    error: errors.AgentsvcError, remedy: str
) -> None:
    text = explain_error(error, "last words")
    assert text.startswith("no answer. ")
    assert remedy in text
    assert text.endswith("\nlast words")


def test_an_error_that_names_its_own_remedy_is_told_as_it_is() -> None:
    assert explain_error(errors.StartRefused("Do this"), "last words") == "Do this"


def test_a_log_that_was_told_already_is_not_told_twice() -> None:
    assert with_log_tail("it failed: boom", "boom") == "it failed: boom"
    assert with_log_tail("it failed", "") == "it failed"


@pytest.mark.parametrize(
    ("target", "phase", "told"),
    [
        (Target.RUNNING, Phase.GONE, "does not exist any more"),
        (Target.PAUSED, Phase.PAUSED, "was paused"),
        (Target.PAUSED, Phase.RUNNING, "was paused"),
        (Target.RUNNING, Phase.STARTING, "did not start within 5 s"),
        (Target.RUNNING, Phase.RUNNING, "no port called `agent`"),
        (Target.RUNNING, Phase.FAILED, "The sandbox failed: it gave no reason"),
    ],
)
def test_every_state_of_a_sandbox_that_stops_a_start_is_told(
    target: Target, phase: Phase, told: str
) -> None:
    assert told in explain_sandbox(sandbox(target, phase), "", 5)


def test_a_sandbox_that_was_deleted_is_told() -> None:
    assert explain_sandbox(None, "", 5).startswith("The sandbox was deleted")


def test_a_missing_agent_server_is_told_with_the_command_that_installs_it() -> None:
    failed = sandbox(Target.RUNNING, Phase.FAILED)
    tail = "ModuleNotFoundError: No module named 'openhands'"
    text = explain_sandbox(failed, tail, 5)
    assert "`pip install 'agentsvc[agent]'`" in text
    assert text.endswith(tail)


LONG = "word " * 200
TAIL = "\n".join(f"log line {number}" for number in range(100))


def parts(text: str) -> tuple[str, str]:
    """Return the first line of a reason, which is not too long, and what is below it."""
    first, _, below = text.partition("\n")
    assert len(first) <= REASON_CHARS
    return first, below


@pytest.mark.parametrize(
    "kind",
    [
        errors.AgentUnavailable,
        errors.AgentRefused,
        errors.BackendBroken,
        errors.BackendUnavailable,
        errors.CapacityExceeded,
        errors.OrderRejected,
        errors.SandboxNotUsable,
        errors.Unsupported,
        errors.Gone,
    ],
)
def test_the_first_line_names_what_to_do_however_much_the_error_says(
    kind: type[errors.AgentsvcError],
) -> None:
    remedy = explain_error(kind("short"), "").removeprefix("short. ")
    first, below = parts(explain_error(kind(f"{LONG}\nmore"), TAIL))
    assert first.endswith(remedy)
    assert below.startswith(LONG.strip())
    assert "\nmore" in below
    assert below.endswith(TAIL)


@pytest.mark.parametrize(
    ("target", "phase"),
    [
        (Target.RUNNING, Phase.GONE),
        (Target.PAUSED, Phase.PAUSED),
        (Target.PAUSED, Phase.RUNNING),
        (Target.RUNNING, Phase.STARTING),
        (Target.RUNNING, Phase.RUNNING),
        (Target.RUNNING, Phase.FAILED),
    ],
)
@pytest.mark.parametrize("reason", ["", "it ended", LONG, f"it did not answer. It wrote:\n{TAIL}"])
def test_the_first_line_names_what_to_do_whatever_a_sandbox_says(
    target: Target, phase: Phase, reason: str
) -> None:
    seen = msgspec.structs.replace(sandbox(target, phase), reason=reason)
    first, below = parts(explain_sandbox(seen, TAIL, 5))
    remedies = ("Start the conversation again", "Give its spec", "Resume it")
    assert any(remedy in first for remedy in remedies)
    assert "log line" not in first
    assert below.endswith(TAIL)


def test_the_first_line_about_an_unknown_sandbox_names_what_to_do() -> None:
    assert "Leave `sandbox_id` out" in parts(unknown_sandbox("x" * 1000))[0]


@pytest.mark.parametrize(
    ("said", "code", "remedy"),
    [
        ("", 127, "Install it there"),
        ("fatal: Remote branch x not found", 128, "Name one that does"),
        ("fatal: could not read Username", 128, "Store a token"),
        ("remote: repository not found", 128, "Check its name"),
        ("fatal: Could not resolve host", 128, "Check name and network"),
        ("fatal: early EOF", 128, "Start the conversation again"),
    ],
)
def test_the_first_line_about_a_clone_names_what_to_do(said: str, code: int, remedy: str) -> None:
    clone = Clone(
        repository="a" * 300,
        url="https://git.example/" + "a" * 300,
        branch="b" * 200,
        work_branch="w",
        is_full=False,
        time_limit=1,
    )
    result = CommandResult(exit_code=code, stdout="", stderr=f"{TAIL}\n{said}")
    first, below = parts(clone_failure(clone, result))
    assert remedy in first
    assert below.endswith(said) or not said


def test_a_reason_that_is_short_is_one_line() -> None:
    assert reason_of("It broke", "Mend it") == "It broke. Mend it"
    assert reason_of("It broke.", "Mend it", "why") == "It broke. Mend it\nwhy"
