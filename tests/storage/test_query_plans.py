"""How SQLite finds pages: by an index that has their order, whatever is asked for."""

import itertools
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from agentsvc.base.bus import EventBus
from agentsvc.base.values import encode_cursor, new_id
from agentsvc.conversations.archives.table import search_archives
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.event_table import EventQuery, find_state
from agentsvc.conversations.model import ConversationQuery
from agentsvc.conversations.starting.task_table import StartTaskTable
from agentsvc.conversations.table import ConversationTable
from agentsvc.domain.orders import ConversationSort, StartSort
from agentsvc.extension.tables import migrate
from agentsvc.sandboxes.table import SandboxTable
from agentsvc.storage.database import Database
from agentsvc.storage.paging import SqlPage
from agentsvc.storage.queries import Row
from agentsvc.storage.vault import Vault
from tests.plugin_loading import part

if TYPE_CHECKING:
    from automations.github_app import AppTable
    from automations.table import MIGRATIONS, AutomationTable, RunTable
    from automations.work_table import PollTable, WorkTable
    from webhooks.model import DeliveryState
    from webhooks.table import DeliveryTable
else:
    automations = part("automations.table")
    MIGRATIONS, AutomationTable, RunTable = (
        automations.MIGRATIONS,
        automations.AutomationTable,
        automations.RunTable,
    )
    AppTable = part("automations.github_app").AppTable
    works = part("automations.work_table")
    PollTable, WorkTable = works.PollTable, works.WorkTable
    DeliveryState = part("webhooks.model").DeliveryState
    DeliveryTable = part("webhooks.table").DeliveryTable

MOMENT: Final = datetime(2030, 1, 1, tzinfo=UTC)
USER: Final = "0" * 32
PAGE: Final = 20


class Explained(Database):
    """A database that notes how it answers every query."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.plans: list[str] = []

    async def one(self, sql: str, params: Mapping[str, Any] = {}) -> Row | None:
        """Return the first row of a query, and note its plan."""
        rows = await self.all(sql, params)
        return rows[0] if rows else None

    async def all(self, sql: str, params: Mapping[str, Any] = {}) -> list[Row]:
        """Return the rows of a query, and note its plan."""
        steps = await super().all(f"EXPLAIN QUERY PLAN {sql}", params)
        self.plans += [f"{step['detail']}: {' '.join(sql.split())[-300:]}" for step in steps]
        return await super().all(sql, params)

    def slow(self) -> list[str]:
        """Return the steps that look at rows nobody asked for, or put rows into order."""
        return [plan for plan in self.plans if _is_slow(plan.partition(":")[0])]


def _is_slow(step: str) -> bool:
    is_given = "VIRTUAL TABLE" in step or "CONSTANT ROW" in step or "(subquery" in step
    return "TEMP B-TREE" in step or (step.startswith("SCAN") and not is_given)


@pytest.fixture
async def explained(db_path: Path) -> AsyncIterator[Explained]:
    database = await Explained.open(db_path)
    assert isinstance(database, Explained)
    yield database
    await database.close()


def test_what_is_slow_is_seen() -> None:
    assert _is_slow("SCAN events")
    assert _is_slow("USE TEMP B-TREE FOR ORDER BY")
    assert not _is_slow("SEARCH events USING INDEX events_by_time (conversation_id=?)")
    assert not _is_slow("SCAN json_each VIRTUAL TABLE INDEX 1:")


async def test_pages_of_conversations_are_in_the_order_of_an_index(explained: Explained) -> None:
    table = ConversationTable(explained, EventBus())
    for sort, goes_on, whole in itertools.product(ConversationSort, (False, True), (False, True)):
        # A range of what they are sorted by is a part of the index; any other has to be sorted.
        query = ConversationQuery(
            sort=sort,
            include_children=whole,
            include_starting=whole,
            created_at_gte=MOMENT if "CREATED" in sort else None,
            updated_at_gte=MOMENT if "UPDATED" in sort else None,
        )
        page_id = encode_cursor(str(sort), "x", "y") if goes_on else None
        await table.search(USER, query, page_id=page_id, limit=PAGE)
    assert len(explained.plans) >= 24
    assert explained.slow() == []


async def test_conversations_are_found_by_an_index(explained: Explained) -> None:
    table = ConversationTable(explained, EventBus())
    await table.find(new_id())
    await table.find_of_user(USER, [new_id()], include_starting=True)
    await table.find_by_alias(USER, "name")
    await table.of_sandbox(new_id())
    await table.occupancy([new_id()])
    await table.count(USER, ConversationQuery())
    assert explained.slow() == []


async def test_pages_of_events_are_in_the_order_of_an_index(explained: Explained) -> None:
    log = EventLog(explained, EventBus(), store_deltas=False)
    bounds = (None, "2030-01-01T00:00:00")
    for kind, low, high, descending, goes_on in itertools.product(
        (None, "MessageEvent"), bounds, bounds, (False, True), (False, True)
    ):
        query = EventQuery(kind=kind, timestamp_gte=low, timestamp_lt=high, descending=descending)
        page_id = encode_cursor("2030-01-01T00:00:00", 7) if goes_on else None
        await log.search(new_id(), query, page_id=page_id, limit=PAGE)
        await log.count(new_id(), query)
    assert explained.slow() == []


async def test_events_are_read_by_their_number_or_id(explained: Explained) -> None:
    log = EventLog(explained, EventBus(), store_deltas=False)
    await log.find_many(new_id(), [new_id()])
    await log.read_range(new_id(), from_seq=5, limit=PAGE)
    await log.find_last(new_id())
    await log.count(new_id(), EventQuery())
    await find_state(explained, new_id(), [new_id()])
    assert explained.slow() == []


async def test_pages_of_everything_else_are_in_the_order_of_an_index(
    explained: Explained, tmp_path: Path
) -> None:
    vault = Vault.open(tmp_path / "key")
    tasks = StartTaskTable(explained, vault, EventBus())
    for sort, goes_on in itertools.product(StartSort, (False, True)):
        await tasks.search(
            USER,
            conversation_id=None,
            created_at_gte=None,
            sort=sort,
            page_id=encode_cursor(str(sort), "x", "y") if goes_on else None,
            limit=PAGE,
        )
    for page_id in (None, encode_cursor("x", "y")):
        page = SqlPage.newest_first(page_id)
        await SandboxTable(explained, vault).search(USER, page, PAGE)
        await search_archives(explained, USER, page, PAGE)
    for state in (None, DeliveryState.PENDING, DeliveryState.FAILED):
        await DeliveryTable.search(explained, new_id(), state=state, before=7, limit=PAGE)
    assert explained.slow() == []


async def test_what_is_due_is_found_by_an_index(explained: Explained) -> None:
    await migrate(explained, "automations", MIGRATIONS)
    explained.plans.clear()
    await AutomationTable.due(explained, MOMENT, PAGE)
    await AutomationTable.next_at(explained)
    await AutomationTable.of_repository(explained, new_id(), "octo/demo")
    await AppTable.find(explained, new_id())
    await RunTable.startable(explained, MOMENT, PAGE)
    await RunTable.next_at(explained, MOMENT)
    await RunTable.running(explained, new_id())
    await RunTable.count_waiting(explained, new_id())
    await RunTable.search(explained, new_id(), limit=PAGE, offset=0)
    await WorkTable.all_open(explained, new_id())
    await RunTable.known(explained, new_id(), [new_id()])
    await WorkTable.of_conversation(explained, new_id())
    await WorkTable.due(explained, MOMENT)
    assert len(explained.plans) >= 10
    assert explained.slow() == []
    # These read what runs, and nothing else.
    await RunTable.running(explained)
    await RunTable.of_conversations(explained, [new_id()])
    assert all("runs_running" in plan for plan in explained.slow())
    explained.plans.clear()
    await PollTable.due(explained, MOMENT)
    assert all("automations_polled" in plan for plan in explained.slow())
    assert explained.plans
