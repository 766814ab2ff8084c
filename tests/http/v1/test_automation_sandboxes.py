"""What becomes of the sandboxes of runs, however those end."""

import asyncio
from typing import Any

import pytest

from agentsvc.sandboxes import Sandboxes
from agentsvc.testing.llm import Playbook, finish
from tests.http.gateway.steps import until
from tests.http.v1.test_automations import BASE, are, create, runs, soon, wait_for_runs
from tests.sandboxes.test_idle import BUSY
from tests.service import Client, Service
from tests.troubles import TroubledAgent

MANUAL = {"type": "manual"}


async def dispatch(client: Client, made: dict[str, Any]) -> None:
    answer = await client.post(f"{BASE}/{made['id']}/dispatch")
    assert answer.status == 201, answer.text


async def loses_sandbox(client: Client, run: dict[str, Any]) -> None:
    await client.wait_for_conversation(
        run["conversation_id"], lambda one: bool(one["sandbox_status"] == "MISSING")
    )


@pytest.mark.parametrize("how", ["cancelled", "replaced", "too long"])
async def test_the_sandbox_of_a_run_that_was_stopped_goes_where_its_automation_says_so(
    client: Client, fake_agent: TroubledAgent, how: str
) -> None:
    fake_agent.playbook = Playbook((BUSY,))
    more = {"timeout": 1} if how == "too long" else {"concurrency": "replace"}
    made = await create(client, MANUAL, keep_alive=False, **more)
    await dispatch(client, made)
    [run] = await wait_for_runs(client, made["id"], are("RUNNING"))

    async def is_ready() -> bool:
        return await client.conversation(run["conversation_id"]) is not None

    await until(is_ready)
    if how == "cancelled":
        await client.wait_for_execution(run["conversation_id"], "running")
        assert (await client.post(f"{BASE}/runs/{run['id']}/cancel")).status == 200
    elif how == "replaced":
        await client.wait_for_execution(run["conversation_id"], "running")
        await dispatch(client, made)
    await loses_sandbox(client, run)
    ended = (await runs(client, made["id"]))[-1]
    assert ended["status"] == ("FAILED" if how == "too long" else "CANCELLED")


async def test_the_sandbox_of_a_run_goes_also_where_the_server_ends_with_the_run(
    client: Client, service: Service, fake_agent: TroubledAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Sandboxes, "delete", hang)
    fake_agent.playbook = Playbook([finish("All is well.")])
    made = await create(client, soon(), keep_alive=False)
    [run] = await wait_for_runs(client, made["id"], are("COMPLETED"))
    await service.stop()
    monkeypatch.undo()
    await service.start()
    await loses_sandbox(client, run)
