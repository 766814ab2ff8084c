"""Which run of an automation begins when others wait for something."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.http.v1.test_automations import are, create, soon, wait_for_runs
from tests.http.v1.test_issues_to_pulls import make_loop
from tests.issue_hosts import GOOD, IssueHost
from tests.plugin_loading import part
from tests.service import Service

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
