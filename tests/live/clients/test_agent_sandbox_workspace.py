"""The published workspace for agent-sandbox, at the API server that the backend is tested with.

The agent server in the pod is real; API server and controller are the tests' own.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kube.agent_sandbox import SandboxApi
from tests.live.client import PATIENCE
from tests.live.clients.published import Client
from tests.plugins.agent_sandbox.pools import POOL, shown
from tests.plugins.kubernetes.rigs import until

type Json = dict[str, Any]

PORT = 8000
ENTRY = f'exec "$0" -m openhands.agent_server --host "$KIT_HOST" --port {PORT}'

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


def claimed(api: SandboxApi) -> list[Json]:
    """Return the sandboxes that a claim was given."""
    return [
        one
        for one in api.all_of("sandboxes")
        if one["metadata"]["ownerReferences"][0]["kind"] == "SandboxClaim"
    ]


@contextlib.asynccontextmanager
async def router(api: SandboxApi) -> AsyncIterator[str]:
    """Give a URL that leads to the pod of the claimed sandbox, whichever that is now."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, LookupError):
            [sandbox] = claimed(api)
            pod = api.store.get("pods", "default", sandbox["metadata"]["name"])
            far_reader, far_writer = await asyncio.open_connection(pod["status"]["podIP"], PORT)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        writer.close()

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def test_the_workspace_claims_uses_pauses_and_gives_back_a_sandbox(
    agent_sandbox_sdk: Client, tmp_path: Path
) -> None:
    template, pool = shown()
    for one in (template, pool):
        one["metadata"]["namespace"] = "default"
    pool["spec"]["replicas"] = 1
    [container] = template["spec"]["podTemplate"]["spec"]["containers"]
    container |= {
        "args": [ENTRY, sys.executable],
        "env": [
            {"name": "HOME", "value": str(tmp_path)},
            {"name": "LITELLM_LOCAL_MODEL_COST_MAP", "value": "True"},
        ],
        "readinessProbe": {"tcpSocket": {"port": PORT}},
    }
    with SandboxApi(tmp_path / "volumes") as api:
        api.put(template)
        api.put(pool)
        # Agent servers are started three times, all of them plainly.
        async with asyncio.timeout(4 * PATIENCE), router(api) as url:
            seen = await agent_sandbox_sdk.run(
                "sdk_agent_sandbox.py",
                kubeconfig=str(api.kubeconfig(tmp_path / "config")),
                pool=POOL,
                host=url,
                directory=".",
            )
            assert seen == {"said": "one\n", "kept": "kept\n"}
            await until(lambda: not claimed(api))
        assert api.all_of("sandboxclaims") == []
