"""What becomes of the events of git hosts that are many, or of no use."""

from typing import TYPE_CHECKING, Any

import pytest

from agentsvc.extension.storage import Transaction
from tests.http.v1.test_issues_to_pulls import BASE, host, make_loop
from tests.issue_hosts import IssueHost
from tests.plugin_loading import part
from tests.service import Client, Service

if TYPE_CHECKING:
    from automations.host_events import HostEvent
    from automations.hosts import Kind
    from automations.routes import AUTOMATIONS
    from automations.table import RunTable
    from automations.work_table import WorkTable
else:
    HostEvent, Kind = part("automations.host_events").HostEvent, part("automations.hosts").Kind
    AUTOMATIONS = part("automations.routes").AUTOMATIONS
    RunTable, WorkTable = (
        part("automations.table").RunTable,
        part("automations.work_table").WorkTable,
    )


__all__ = ["host"]


async def test_many_events_that_are_known_take_no_more_than_a_few(
    client: Client, service: Service, host: IssueHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = (await make_loop(client, host)).made
    looks: list[str] = []
    for table, name in ((WorkTable, "all_open"), (RunTable, "count_waiting")):
        ask = getattr(table, name)

        async def count(source: Any, *args: Any, ask: Any = ask, name: str = name) -> Any:
            # What begins runs looks, too, and in no transaction.
            looks.extend([name] if isinstance(source, Transaction) else [])
            return await ask(source, *args)

        monkeypatch.setattr(table, name, count)
    events = [HostEvent(kind=Kind.COMMENT, number="7", id=str(number)) for number in range(30)]
    automations = service.app[AUTOMATIONS]
    assert len(await automations.record_events(made["id"], events)) == len(events)
    looks.clear()
    assert await automations.record_events(made["id"], events) == []
    assert looks == ["all_open"]


async def test_a_delivery_to_a_disabled_automation_counts_for_none(
    client: Client, host: IssueHost
) -> None:
    loop = await make_loop(client, host)
    await client.patch(f"{BASE}/{loop.made['id']}", json={"enabled": False})
    answer = (await loop.begin()).json()
    assert (answer["matched"], answer["runs_created"]) == (0, [])
