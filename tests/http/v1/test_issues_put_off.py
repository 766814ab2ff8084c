"""Work on issues whose sandbox, or whose git host, keeps it waiting."""

from datetime import timedelta
from typing import Any

import pytest
from aiohttp import web

from agentsvc.agentserver.responses import CommandResult
from agentsvc.base.errors import QuotaExceeded
from agentsvc.base.values import now, to_stored
from agentsvc.conversations.service import Conversations
from agentsvc.http.keys import DATABASE, SUPERVISOR
from agentsvc.testing.llm import Playbook, say
from tests.committing_agent import CommittingAgent
from tests.http.gateway.steps import until
from tests.http.v1.test_issues_to_pulls import BASE, fake_agent, host, open_loop
from tests.issue_hosts import BOT, IssueHost
from tests.plugin_loading import part
from tests.sandboxes.test_idle import BUSY
from tests.service import Client, Service
from tests.troubles import TroubledWorld, eventually, reconfigure

__all__ = ["fake_agent", "host"]

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def refused_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have its user's quota stand in the way when a sandbox is resumed for the first time."""
    monkeypatch.setattr(part("automations.issue_hosts"), "_MIN_RETRY_SECONDS", 0.1)
    resume, refusals = Conversations.resume, [QuotaExceeded("You have too many running")]

    async def refuse(*args: Any, **options: Any) -> None:
        if refusals:
            raise refusals.pop()
        await resume(*args, **options)

    monkeypatch.setattr(Conversations, "resume", refuse)


@pytest.mark.usefixtures("refused_once")
async def test_the_work_in_a_sandbox_that_takes_long_to_go_on_is_published_when_it_does(
    client: Client,
    service: Service,
    host: IssueHost,
    fake_agent: CommittingAgent,
    fake_world: TroubledWorld,
    *,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # How long it is waited for each time.
    await reconfigure(service, sandboxes={"call_seconds": 3}, conversations={"agent_seconds": 3})
    fake_agent.files = {"fix.txt": "1"}
    let_go = fake_world.hold("resume")
    loop = await open_loop(client, host)
    await loop.begin()
    [run] = await loop.wait_until(lambda runs: bool(runs and runs[0]["conversation_id"]))

    async def is_ready() -> bool:
        return await client.conversation(run["conversation_id"]) is not None

    await until(is_ready)
    ended = await client.wait_for_execution(run["conversation_id"], "finished")
    await client.post(f"/api/v1/sandboxes/{ended['sandbox_id']}/pause")
    await eventually(lambda: caplog.text.count("not published yet") >= 3)
    let_go.set()
    await loop.wait("COMPLETED")
    assert len(host.pulls) == 1


async def test_a_run_that_is_cancelled_before_its_agent_was_told_has_it_do_nothing(
    client: Client, host: IssueHost, fake_agent: CommittingAgent, fake_world: TroubledWorld
) -> None:
    fake_agent.files = {"fix.txt": "1"}
    loop = await open_loop(client, host)
    await loop.begin()
    [run] = await loop.wait("COMPLETED")
    conversation_id = run["conversation_id"]
    await client.wait_for_conversation(
        conversation_id, lambda one: bool(one["sandbox_status"] == "PAUSED")
    )
    let_go = fake_world.hold("resume")
    await loop.deliver("said", comment=host.say(f"@{BOT} rename it", "ada"))
    [second, _] = await loop.wait("RUNNING", "COMPLETED")
    waiting = f"/api/v1/conversations/{conversation_id}/pending-messages"
    assert len((await client.get(waiting)).json()) == 1
    assert (await client.post(f"{BASE}/runs/{second['id']}/cancel")).status == 200
    assert (await client.get(waiting)).json() == []
    let_go.set()


async def test_a_run_that_has_waited_long_for_its_turn_is_tried_again_as_any_other(
    client: Client, host: IssueHost, fake_agent: CommittingAgent, service: Service
) -> None:
    fake_agent.playbook = Playbook((BUSY,))
    loop = await open_loop(client, host)
    await loop.begin()
    [first] = await loop.wait("RUNNING")
    await eventually(lambda: len(host.own_comments()) == 1)
    await loop.deliver("said", comment=host.say(f"@{BOT} please", "ada"))
    sql = "UPDATE plugin_automations_runs SET created_at = :at WHERE status = 'PENDING'"
    at = to_stored(now() - timedelta(hours=2))
    await service.app[DATABASE].write(lambda tx: tx.run(sql, {"at": at}))
    # One for the run, and one for the comment that says that the other was stopped.
    host.fail = [web.Response(status=502), web.Response(status=502)]
    await client.delete(f"/api/v1/app-conversations/{first['conversation_id']}")
    [run, _] = await loop.wait_until(lambda runs: bool(runs[0]["error_detail"]))
    assert run["status"] == "PENDING"
    await eventually(lambda: host.fail == [])
    sql = (
        "UPDATE plugin_automations_runs SET timeout_at = :at, due_at = :at WHERE status = 'PENDING'"
    )
    host.fail = [web.Response(status=502)]
    await service.app[DATABASE].write(lambda tx: tx.run(sql, {"at": at}))
    await loop.wait("FAILED", "CANCELLED")


@pytest.mark.parametrize("how", ["run", "conversation"])
async def test_an_issue_whose_run_was_stopped_says_so(
    client: Client, host: IssueHost, fake_agent: CommittingAgent, how: str
) -> None:
    fake_agent.playbook = Playbook((BUSY,))
    loop = await open_loop(client, host)
    await loop.begin()
    await eventually(lambda: len(host.own_comments()) == 1)
    [run] = await loop.runs()
    if how == "run":
        await client.post(f"{BASE}/runs/{run['id']}/cancel")
    else:
        await client.delete(f"/api/v1/app-conversations/{run['conversation_id']}")
    await loop.wait("CANCELLED")
    await eventually(lambda: "The agent was stopped." in host.own_comments()[0])
    assert len(host.own_comments()) == 1


async def test_what_a_later_run_says_below_an_issue_stays_after_one_that_was_stopped(
    client: Client, host: IssueHost, fake_agent: CommittingAgent, service: Service
) -> None:
    fake_agent.on_command("bundle create", CommandResult(exit_code=4, stdout="", stderr=""))
    fake_agent.playbook = Playbook((BUSY,), follow_up=(say("In line 7."),))
    loop = await open_loop(client, host, keep_alive=True)
    await loop.begin()
    await eventually(lambda: len(host.own_comments()) == 1)
    [run] = await loop.runs()
    await client.wait_for_conversation(
        run["conversation_id"], lambda one: bool(one and one["execution_status"] == "running")
    )
    await loop.deliver("said", comment=host.say(f"@{BOT} where?", "ada"))
    await client.post(f"{BASE}/runs/{run['id']}/cancel")
    await loop.wait("COMPLETED", "CANCELLED")

    # Its sandbox is still to be seen to, as where the server was killed.
    sql = "UPDATE plugin_automations_runs SET is_settled = 0 WHERE status = 'CANCELLED'"
    await service.app[DATABASE].write(lambda tx: tx.run(sql))
    await service.restart()

    async def is_settled() -> bool:
        sql = "SELECT MIN(is_settled) FROM plugin_automations_runs"
        return bool(await service.app[DATABASE].value(sql))

    await until(is_settled)
    await service.app[SUPERVISOR].join(f"publication of work {run['id']}")
    assert "> In line 7." in host.own_comments()[0]
