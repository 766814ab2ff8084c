"""Examples of the published SDK for servers elsewhere, as they are, against a server of ours.

No package has them: `SDK_EXAMPLES` names the directory `examples/02_remote_agent_server` of a checkout of
OpenHands/software-agent-sdk. Without it these do not run, and the tests beside do the same by the published
packages: `test_runtime_workspace` and `test_python_sdk`. The other examples there start an agent server
of their own, and have to do with no server.
"""

import os
from pathlib import Path

import pytest

from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE
from tests.live.clients.published import Client
from tests.live.conftest import MakeInstallation

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.parametrize(
    "example",
    [
        "04_convo_with_api_sandboxed_server.py",
        "07_convo_with_cloud_workspace.py",
        "10_cloud_workspace_share_credentials.py",
    ],
)
async def test_an_example_of_the_sdk_runs_as_it_is(
    python_sdk: Client, make_installation: MakeInstallation, model: ScriptedModel, example: str
) -> None:
    if not (directory := os.environ.get("SDK_EXAMPLES")):
        pytest.skip("SDK_EXAMPLES does not name the examples of a checkout")
    own = await make_installation(
        AGENTSVC_RUNTIME_API__ENABLED="true",
        AGENTSVC_RUNTIME_API__SPEC="process",
        AGENTSVC_RUNTIME_API__AT_ROOT="true",
    )
    await own.client().save_settings()
    key = own.key.reveal()
    environment = {
        "LLM_API_KEY": model.key.reveal(),
        "LLM_BASE_URL": model.url,
        "LLM_MODEL": "openai/scripted",
        "RUNTIME_API_KEY": key,
        "RUNTIME_API_URL": f"{own.url}/runtime",
        "OPENHANDS_CLOUD_API_KEY": key,
        "OPENHANDS_CLOUD_API_URL": own.url,
    }
    said = await python_sdk.call(
        "env",
        *(f"{name}={value}" for name, value in environment.items()),
        *python_sdk.command,
        str(Path(directory) / example),
        time_limit=6 * PATIENCE,
    )
    assert "EXAMPLE_COST: " in said
    assert own.leftovers() == []
