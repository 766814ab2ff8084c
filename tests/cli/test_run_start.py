"""What `agentsvc run` says of a start: how long it took, and where that went."""

from typing import Any

import pytest

from agentsvc.cli.run.watch import describe_duration


def stage(status: str, duration_ms: int | None) -> dict[str, Any]:
    return {"status": status, "duration_ms": duration_ms}


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        (
            [
                stage("WORKING", 20),
                stage("WAITING_FOR_SANDBOX", 900),
                stage("STARTING_CONVERSATION", 320),
                stage("READY", None),
            ],
            "ready after 1.2 s (waiting for sandbox 0.9 s, starting conversation 0.3 s)",
        ),
        ([stage("WORKING", 0), stage("READY", None)], "ready"),
        ([], "ready"),
    ],
)
def test_a_start_tells_what_took_long(stages: list[dict[str, Any]], text: str) -> None:
    assert describe_duration(stages) == text
