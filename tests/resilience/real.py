"""A server under test with sandboxes of its own: real agent servers, as processes of this machine."""

import asyncio
import base64
import itertools
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from agentsvc.base.values import Secret, new_key
from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.live.client import PATIENCE, LiveClient
from tests.live.installation import Installation
from tests.live.scripts import SCRIPTS
from tests.service import Client

SECONDS: Final = 240
# Sandboxes have an environment of their own; one that says where this package is, they need.
_PACKAGES: Final = (
    {"AGENTSVC_BACKENDS__PROCESS__PASS_ENV": '["PYTHONPATH"]'} if "PYTHONPATH" in os.environ else {}
)


class Inside:
    """One sandbox, in which programs are run as an agent would."""

    def __init__(self, sandbox: Mapping[str, Any], agent: Client) -> None:
        self.sandbox = sandbox
        self.id = str(sandbox["id"])
        self.key = str(sandbox["session_api_key"])
        self.agent = agent
        """A client of its agent server, by way of the gateway."""

    async def until_it_answers(self) -> None:
        """Wait for the agent server; a gateway takes connections before it."""
        async with asyncio.timeout(SECONDS):
            for pause in itertools.repeat(0.2):
                if (await self.agent.get("/alive")).status == 200:
                    return
                await asyncio.sleep(pause)

    async def run(self, program: str, *arguments: str) -> Any:
        """Run a program in Python that prints one line of JSON at its end; return that."""
        script = base64.b64encode(program.encode()).decode()
        words = " ".join(base64.b64encode(text.encode()).decode() for text in arguments)
        command = (
            f"echo {script} | base64 -d > /tmp/probe.py && "
            f"timeout -k 5 {SECONDS} python3 /tmp/probe.py {words}; rm -f /tmp/probe.py"
        )
        answer = await self.agent.post(
            "/api/bash/execute_bash_command", json={"command": command, "timeout": SECONDS}
        )
        assert answer.status == 200, answer.text
        said = answer.json()
        lines = (said.get("stdout") or "").strip().splitlines()
        assert lines, f"nothing was said: {said}"
        return msgspec.json.decode(lines[-1])


class RealServer:
    """An installation, a client of it, and its sandboxes."""

    def __init__(self, installation: Installation, client: LiveClient) -> None:
        self.installation = installation
        self.client = client
        self._agents: list[Client] = []

    @property
    def model(self) -> ScriptedModel:
        return self.installation.model

    async def sandbox(self, spec: str | None = None) -> Inside:
        """Start a sandbox and wait until it runs."""
        query = f"?sandbox_spec_id={spec}" if spec else ""
        answer = await self.client.post(f"/api/v1/sandboxes{query}")
        assert answer.status in (200, 201), answer.text
        made = self.of(await self.client.wait_for_sandbox(answer.json()["id"], "RUNNING"))
        await made.until_it_answers()
        return made

    def of(self, sandbox: Mapping[str, Any]) -> Inside:
        """Return a sandbox that there is."""
        url = f"{self.installation.url}/sandboxes/{sandbox['id']}/agent"
        agent = Client(url, str(sandbox["session_api_key"]), patience=SECONDS + PATIENCE)
        self._agents.append(agent)
        return Inside(sandbox, agent)

    async def close(self) -> None:
        for agent in self._agents:
            await agent.close()


@asynccontextmanager
async def real_server(
    directory: Path, environment: Mapping[str, str] | None = None, *, model_at: str = "127.0.0.1"
) -> AsyncIterator[RealServer]:
    """Give a server that has a model of its own, at this address; all of it ends with it."""
    key = Secret(new_key("model-").reveal())
    async with ScriptedModel(scripts=SCRIPTS, key=key, host=model_at) as model:
        hosts = msgspec.json.encode([host_of_url(model.url)]).decode()
        installation = Installation(
            directory,
            model,
            {
                "AGENTSVC_SANDBOXES__MODEL_HOSTS": hosts,
                "AGENTSVC_CONVERSATIONS__FIRST_ANSWER_SECONDS": "30",
                **_PACKAGES,
                "AGENTSVC_SERVER__REQUEST_SECONDS": str(SECONDS + PATIENCE),
                **(environment or {}),
            },
        )
        await installation.start()
        client = installation.client()
        # Agent servers that are loaded one after the other take their time on a busy machine.
        client.patience = SECONDS
        server = RealServer(installation, client)
        try:
            await client.save_settings()
            yield server
        finally:
            await server.close()
            await installation.close()


def own_address() -> str:
    """Return an address of this machine that is not loopback, or loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(trial.getsockname()[0])
