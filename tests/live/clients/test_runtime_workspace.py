"""The published remote workspace, on a server of ours that serves the remote runtime API."""

import pytest

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE
from tests.live.clients.published import Client
from tests.live.conftest import MakeInstallation
from tests.live.scripts import run

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


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
