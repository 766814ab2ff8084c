"""The published automation service in its cloud mode, whose runs are sandboxes of this server."""

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from process.launch import search_path

from agentsvc.base.values import monotonic
from tests.live.client import PATIENCE
from tests.live.clients.published import Client, takes_minutes
from tests.live.conftest import MakeInstallation
from tests.live.installation import Installation, eventually
from tests.service import Client as Caller

pytestmark = [
    pytest.mark.live,
    takes_minutes,
    pytest.mark.timeout(1500),
    pytest.mark.asyncio(loop_scope="session"),
]

API = "/api/automation/v1"
OVER = ("COMPLETED", "FAILED", "SKIPPED")
LIMIT = 6 * PATIENCE
"""Seconds a run may take: its set-up installs the SDK."""


@pytest.fixture
def tools(automation_service: Client) -> Iterator[Path]:
    """Return a directory with `uv`, which sandboxes see; those of root's server are other users."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:  # /tmp is the sandbox's own
        Path(name).chmod(0o755)
        shutil.copy(Path(automation_service.command[0]).with_name("uv"), name)
        yield Path(name)


@asynccontextmanager
async def running(
    published: Client, listener: socket.socket, own: Installation, key: str, directory: Path
) -> AsyncIterator[str]:
    """Run the service at the listener and return its address."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    environment = {
        # Else it asks the network for prices while it is loaded.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "AUTOMATION_DB_URL": f"sqlite+aiosqlite:///{directory}/automations.db",
        "AUTOMATION_OPENHANDS_API_BASE_URL": own.url,
        "AUTOMATION_SERVICE_KEY": key,
        "AUTOMATION_BASE_URL": url,
        "AUTOMATION_SCHEDULER_INTERVAL_SECONDS": "1",
        "AUTOMATION_DISPATCHER_INTERVAL_SECONDS": "1",
        "AUTOMATION_SANDBOX_POLL_INTERVAL": "1",
        "AUTOMATION_SANDBOX_READY_TIMEOUT": str(int(LIMIT)),
        "LOCAL_STORAGE_PATH": str(directory),
    }
    program = ("-m", "uvicorn", "openhands.automation.app:app", "--fd", str(listener.fileno()))
    with (directory / "service.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *published.command,
            *program,
            cwd=directory,
            env={**os.environ, "HOME": str(published.home), **environment},
            stdout=log,
            stderr=log,
            pass_fds=[listener.fileno()],
        )
        try:
            yield url
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


class Automation:
    """One automation of the service, of each minute."""

    def __init__(self, service: Caller, log: Path) -> None:
        self._service = service
        self._log = log
        self._id = ""

    async def make(self, prompt: str) -> None:
        trigger = {"type": "cron", "schedule": "* * * * *"}
        order = {"name": "nightly", "prompt": prompt, "trigger": trigger}
        made = await self._service.post(f"{API}/preset/prompt", json=order)
        assert made.status == 201, made.text
        self._id = made.json()["id"]

    async def dispatch(self) -> str:
        answer = await self._service.post(f"{API}/{self._id}/dispatch")
        assert answer.status == 201, answer.text
        found: str = answer.json()["id"]
        return found

    async def end_of(self, run_id: str) -> dict[str, Any]:
        """Return a run once it is over."""
        return await self._until(lambda one: one["id"] == run_id and one["status"] in OVER)

    async def completed(self) -> dict[str, Any]:
        """Return a run that has done its work, once there is one."""
        return await self._until(lambda one: one["status"] == "COMPLETED")

    async def _until(self, is_meant: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = monotonic() + LIMIT
        while True:
            runs = (await self._service.get(f"{API}/{self._id}/runs")).json()["runs"]
            if found := next(filter(is_meant, runs), None):
                return dict(found)
            assert monotonic() < deadline, (runs, self.log[-5000:])
            await asyncio.sleep(0.5)

    @property
    def log(self) -> str:
        """Return what the service has said."""
        return self._log.read_text()


async def test_it_runs_an_automation_once_there_is_room_until_its_key_is_revoked(
    automation_service: Client,
    make_installation: MakeInstallation,
    tools: Path,
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = await make_installation(
            AGENTSVC_SANDBOXES__START_SECONDS=str(LIMIT),
            AGENTSVC_GIT__PRIVATE_HOSTS=json.dumps([f"127.0.0.1:{listener.getsockname()[1]}"]),
            AGENTSVC_BACKENDS__PROCESS__READABLE=json.dumps([str(tools)]),
            AGENTSVC_BACKENDS__PROCESS__PATH=f"{tools}:{sys.base_prefix}/bin:{search_path('')}",
        )
        made = (
            await own.client().post("/api/keys", json={"name": "service", "scope": "service"})
        ).json()
        async with running(automation_service, listener, own, made["key"], tmp_path) as url:
            service = Caller(url, own.key.reveal(), patience=PATIENCE)
            try:
                await _use(Automation(service, tmp_path / "service.log"), own, made["id"])
            finally:
                await service.close()


async def _use(automation: Automation, own: Installation, key_id: int) -> None:
    admin = own.client()
    me = (await admin.get("/api/v1/users/me")).json()["id"].replace("-", "")
    quotas = f"/api/v1/users/{me}/quotas"
    await admin.put(quotas, json={"running_sandboxes": 0})
    await automation.make("[script:outcome]")
    skipped = await automation.end_of(await automation.dispatch())
    assert skipped["status"] == "SKIPPED"
    assert skipped["status_detail"]["kind"] == "concurrency_limit"

    # Its schedule tries again each minute, and finds room once there is some.
    await admin.put(quotas, json={"running_sandboxes": 1})
    ended = await automation.completed()
    assert ended["run_metadata"]["finish_tool_response"]["status"] == "success"
    assert admin.asked("[script:outcome]")
    kept = await admin.conversation(ended["conversation_id"])
    assert kept["title"].startswith("nightly")

    assert (await admin.delete(f"/api/keys/{key_id}")).status == 200
    refused = await automation.end_of(await automation.dispatch())
    assert refused["status"] == "FAILED"
    assert "HTTP 401" in automation.log
    # A run that has begun since then cannot be ended by the service any more.
    for one in (await admin.get("/api/v1/sandboxes/search")).json()["items"]:
        await admin.delete(f"/api/v1/sandboxes/{one['id']}")
    await eventually(
        lambda: not own.sandbox_dirs(), "the files of its sandboxes are gone", time_limit=LIMIT
    )
