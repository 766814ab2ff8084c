"""What users are told where an environment could not be prepared."""

from typing import TYPE_CHECKING

import pytest

from agentsvc.base.errors import AgentsvcError, CapacityExceeded, DiskFull, StartRefused
from tests.plugin_loading import part

if TYPE_CHECKING:
    from environments.failure import explain_error, explain_exit
else:
    explain_error = part("environments.failure").explain_error
    explain_exit = part("environments.failure").explain_exit

FULL = (
    "The disk of its sandbox is full. Free some space there, or make the set-up need"
    " less, and prepare it again"
)


@pytest.mark.parametrize(
    "error",
    [
        CapacityExceeded("This machine's disk is full", detail="cp: cannot write /srv/of/server"),
        DiskFull("The server cannot store anything now: its disk is full."),
        AgentsvcError("The agent server failed: [Errno 28] No space left on device"),
        AgentsvcError("The agent server failed: [Errno 122] Disk quota exceeded"),
    ],
)
def test_a_full_disk_is_named_whoever_finds_it(error: AgentsvcError) -> None:
    assert explain_error(error) == FULL


def test_other_failures_are_told_as_they_are() -> None:
    assert explain_error(StartRefused("No", detail="as said")) == "No: as said"
    assert explain_exit(3, "why") == "The set-up script ended with exit code 3"
    killed = "The set-up script was killed (signal 9)."
    assert explain_exit(137, "Killed").startswith(killed)
    assert explain_exit(255, "") == "The set-up script ended with exit code 255"
