"""What people are told of a start that failed names the cause and what to do."""

import pytest

from agentsvc import errors
from agentsvc.backend import Phase
from agentsvc.conversations.failure import explain_error, explain_sandbox, with_tail
from agentsvc.sandboxes import Target
from tests.unit.test_sandbox_state import sandbox


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (errors.AgentUnavailable("no answer"), "Start the conversation anew"),
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
    assert with_tail("it failed: boom", "boom") == "it failed: boom"
    assert with_tail("it failed", "") == "it failed"


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
