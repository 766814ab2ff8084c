"""Which run of an automation begins when others wait for something."""

import asyncio
import threading
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.base.values import now, to_stored
from agentsvc.http.keys import DATABASE
from tests.http.v1.test_automations import are, create, soon, wait_for_runs
from tests.http.v1.test_issues_to_pulls import make_loop
from tests.issue_hosts import GOOD, IssueHost
from tests.plugin_loading import part
from tests.service import Client, Service
from tests.troubles import eventually

if TYPE_CHECKING:
    from automations.host_calls import HostCalls
else:
    HostCalls = part("automations.host_calls").HostCalls

MANY = 51
"""More than are looked at together."""


async def test_a_slow_git_host_keeps_no_run_of_another_user_waiting(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def hang(*_: Any) -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(HostCalls, "issue", hang)
    ann, bob = await service.make_client("ann"), await service.make_client("bob")
    await bob.save_settings()
    async with IssueHost("github", tmp_path / "git") as host:
        tokens = {"github": {"token": GOOD, "host": host.url}}
        await ann.save_settings(secrets_store={"provider_tokens": tokens})
        host.label("agent", "ada")
        for _ in range(MANY):
            loop = await make_loop(ann, host)
            assert (await loop.deliver("labelled", by="ada")).json()["matched"] == 1
        made = await create(bob, soon())
        await wait_for_runs(bob, made["id"], are("COMPLETED"))
        assert 0 < asked < MANY


async def test_a_schedule_makes_no_more_runs_while_a_thousand_wait(
    client: Client, service: Service
) -> None:
    made, db = (
        await create(client, {"type": "cron", "schedule": "0 0 * * *"}),
        service.app[DATABASE],
    )
    later, sooner = (to_stored(now() + timedelta(seconds=one)) for one in (3600, -1))
    fill = """
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 1000)
        INSERT INTO plugin_automations_runs (id, automation_id, user_id, key, source, status, attempt,
            sealed_as, error_detail, result, due_at, created_at)
        SELECT n, id, user_id, n, 'manual', 'PENDING', 1, '', '', '', :at, :at
        FROM plugin_automations_automations, numbers
    """
    await db.write(lambda tx: tx.run(fill, {"at": later}))
    due = "UPDATE plugin_automations_automations SET next_at = :at"
    await db.write(lambda tx: tx.run(due, {"at": sooner}))
    [run, *_] = await wait_for_runs(client, made["id"], lambda seen: seen[0]["id"] != "1000")
    assert (run["status"], run["error_detail"]) == ("SKIPPED", "1000 runs of it are pending")


async def test_the_schedules_that_are_looked_through_at_a_start_keep_nothing_waiting(
    client: Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = {"type": "cron", "schedule": "0 0 * * *"}
    await create(client, trigger)
    clock, is_stored, was_stored = part("automations.clock"), threading.Event(), []
    parse = clock.parse_cron

    def wait(*args: str) -> Any:
        was_stored.append(is_stored.wait(5))
        return parse(*args)

    monkeypatch.setattr(clock, "parse_cron", wait)
    await service.restart()
    await create(client, trigger)
    is_stored.set()
    await eventually(lambda: was_stored == [True])
