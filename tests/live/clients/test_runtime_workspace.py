"""The published remote workspace, on a server of ours that serves the remote runtime API."""

import pytest

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE
from tests.live.clients.published import Client, takes_minutes
from tests.live.conftest import MakeInstallation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

WORKERS = 32
AT_ONCE = 8
HARNESS_SECONDS = 10 * PATIENCE


async def test_the_remote_workspace_starts_uses_pauses_and_stops_a_runtime(
    python_sdk: Client, make_installation: MakeInstallation, model: ScriptedModel
) -> None:
    own = await make_installation(
        AGENTSVC_RUNTIME_API__ENABLED="true",
        AGENTSVC_RUNTIME_API__SPEC="process",
        AGENTSVC_RUNTIME_API__AT_ROOT="true",
    )
    seen = await python_sdk.run(
        "sdk_runtime.py",
        url=f"{own.url}/runtime",
        key=own.key.reveal(),
        image="ghcr.io/openhands/agent-server:1.58.0-python",
        session_id="published-client",
        llm={
            "model": "openai/scripted",
            "base_url": model.url,
            "api_key": model.key.reveal(),
        },
        text=run("echo two"),
        patience=PATIENCE,
    )
    assert (seen["running"], seen["after_pause"], seen["again"]) == ("running", "paused", "running")
    assert seen["said"] == "one\n"
    assert seen["status"] == "finished"
    assert seen["kept"] == "kept\n"
    assert seen["after_stop"] == "none"
    assert own.leftovers() == []


@takes_minutes
@pytest.mark.timeout(1800)
async def test_a_harness_works_on_many_instances_at_once(
    python_sdk: Client, make_installation: MakeInstallation, model: ScriptedModel
) -> None:
    """As `openhands/benchmarks` does in its remote mode: a runtime, a conversation and a patch of each.

    All ask at once; the server runs as many as fit and lets the others wait, so that memory is bounded.
    """
    own = await make_installation(
        AGENTSVC_RUNTIME_API__ENABLED="true",
        AGENTSVC_RUNTIME_API__SPEC="process",
        AGENTSVC_RUNTIME_API__AT_ROOT="true",
        AGENTSVC_SANDBOXES__CALL_SECONDS="100",
        AGENTSVC_SANDBOXES__START_SECONDS=str(2 * PATIENCE),
        AGENTSVC_SANDBOXES__MAX_RUNNING=str(AT_ONCE),
        AGENTSVC_SANDBOXES__WHEN_FULL="queue",
    )
    seen = await python_sdk.run(
        "sdk_harness.py",
        time_limit=HARNESS_SECONDS,
        url=f"{own.url}/runtime",
        key=own.key.reveal(),
        image="ghcr.io/openhands/eval-agent-server:synthetic-source",
        workers=WORKERS,
        llm={
            "model": "openai/scripted",
            "base_url": model.url,
            "api_key": model.key.reveal(),
        },
        text=run("echo fixed-NUMBER >>name.txt"),
        patience=HARNESS_SECONDS,
    )
    assert [one["error"] for one in seen["instances"] if "error" in one] == []
    for number, one in enumerate(seen["instances"]):
        assert (one["status"], one["exit_code"]) == ("finished", 0)
        assert f"+fixed-{number}" in one["patch"]
        assert {"MessageEvent", "ActionEvent", "ObservationEvent"} <= set(one["kinds"])
    assert own.memory_bytes < 250 * 1024 * 1024
    assert own.leftovers() == []
