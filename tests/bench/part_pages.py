"""Whether pages cost the same however much there is: of events, and of conversations."""

import itertools
import statistics
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.accounts.keys import KeyRing, Role
from agentsvc.base.bus import EventBus
from agentsvc.base.values import new_id
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.event_log import EventLog
from agentsvc.conversations.model import Conversation
from agentsvc.conversations.records import new_conversation
from agentsvc.conversations.table import ConversationTable
from agentsvc.domain.orders import StartOrder
from agentsvc.settings.fields import Settings
from agentsvc.storage.database import Database, Transaction
from tests.bench.figures import Figure, Section, Target
from tests.bench.load import in_turns
from tests.bench.processes import serve_bare
from tests.bench.rig import run
from tests.bench.sizes import Sizes
from tests.service import Client

_AT_ONCE: Final = 2000
_FIRST_DAY: Final = datetime(2030, 1, 1, tzinfo=UTC)
_FLAT: Final = 1.5
_OF_KIND: Final = (
    "/api/v1/conversation/{id}/events/search?limit={n}"
    "&sort_order=TIMESTAMP_DESC&kind__eq=MessageEvent"
)


class _Owner(msgspec.Struct, frozen=True, kw_only=True):
    """A user who has so much, and what of theirs is read."""

    count: int
    key: str
    conversation_id: str


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Fill two sorts of logs and lists, then read all sizes of one sort in turns."""
    data_dir = folder / "pages"
    async with run("tests.bench.server", str(data_dir), "") as server, serve_bare() as bare:
        events = [await make_log(data_dir, count, sizes.event_bytes) for count in sizes.events]
        lists = [await make_list(data_dir, count) for count in sizes.conversations]
        figures = []
        for what, shown, path in (
            ("events", events, "/api/v1/conversation/{id}/events/search?limit={n}"),
            ("events of a kind, newest first", events, _OF_KIND),
            ("count of events", events, "/api/v1/conversation/{id}/events/count"),
            ("conversations", lists, "/api/v1/app-conversations/search?limit={n}"),
        ):
            # As many everywhere, so that only what there is beside them differs.
            asked = path.replace("{n}", str(min(sizes.page, shown[0].count)))
            figures += await _compare(
                what,
                shown,
                url=server.url,
                bare_url=bare.url,
                path=asked,
                count=sizes.requests,
            )
    return Section(
        title="Pages",
        about=f"One page, one request at a time, from logs and lists of growing size. The floor is"
        f" a constant answer of the same size by bare aiohttp. Events have {sizes.event_bytes}"
        " bytes.",
        figures=tuple(figures),
    )


async def _compare(
    what: str, owners: list[_Owner], *, url: str, bare_url: str, path: str, count: int
) -> list[Figure]:
    clients = [Client(url, owner.key) for owner in owners]
    bare = Client(bare_url, None)
    try:
        works = [
            _get(client, path.replace("{id}", owner.conversation_id))
            for client, owner in zip(clients, owners, strict=True)
        ]
        size = len(await works[0]())
        *ours, floor = await in_turns([*works, _get(bare, f"/data?bytes={size}")], count)
    finally:
        for client in (*clients, bare):
            await client.close()
    figures = [
        Figure(name=f"{what}, of {owner.count:,}", unit="ms", ours=_ms(took), floor=_ms(floor))
        for owner, took in zip(owners, ours, strict=True)
    ]
    ratio = statistics.median(ours[-1]) / statistics.median(ours[0])
    ends = f"{owners[-1].count:,} to {owners[0].count:,}"
    flat = Figure(name=f"{what}: {ends}", unit="times", ours=(ratio,), target=Target(most=_FLAT))
    return [*figures, flat]


def _get(client: Client, path: str) -> Callable[[], Awaitable[bytes]]:
    async def get() -> bytes:
        answer = await client.get(path)
        assert answer.status == 200, answer.text
        return answer.body

    return get


def _ms(took: list[float]) -> tuple[float, ...]:
    return tuple(seconds * 1000 for seconds in took)


async def make_log(data_dir: Path, count: int, size: int) -> _Owner:
    """Store a conversation with so many events, past the server, which nobody reads yet."""
    [conversation], key = await _make_conversations(data_dir, 1)
    database = await Database.open(DataDirectory(path=data_dir).database)
    log = EventLog(database, EventBus(), store_deltas=False)
    try:
        for numbers in itertools.batched(range(count), _AT_ONCE):
            raw = [event_of(number, size) for number in numbers]

            async def append(tx: Transaction, raw: list[bytes] = raw) -> None:
                await log.append(tx, conversation.id, raw)

            await database.write(append)
    finally:
        await database.close()
    return _Owner(count=count, key=key, conversation_id=conversation.id)


async def make_list(data_dir: Path, count: int) -> _Owner:
    made, key = await _make_conversations(data_dir, count)
    return _Owner(count=count, key=key, conversation_id=made[0].id)


async def _make_conversations(data_dir: Path, count: int) -> tuple[list[Conversation], str]:
    """Store a user with so many conversations, and return them with a key of the user's."""
    database = await Database.open(DataDirectory(path=data_dir).database)
    table = ConversationTable(database, EventBus())
    try:
        keys = KeyRing(database)
        user_id = await keys.create_user(new_id(), Role.MEMBER)
        _, key = await keys.create_key(user_id, "bench")
        made = [_conversation(user_id, number) for number in range(count)]
        for batch in itertools.batched(made, _AT_ONCE):

            async def insert(tx: Transaction, batch: tuple[Conversation, ...] = batch) -> None:
                for one in batch:
                    await table.insert(tx, one)

            await database.write(insert)
    finally:
        await database.close()
    return made, key.reveal()


def _conversation(user_id: str, number: int) -> Conversation:
    made = new_conversation(user_id, new_id(), StartOrder(), Settings(), None)
    moment = _FIRST_DAY + timedelta(seconds=number)
    return msgspec.structs.replace(
        made, sandbox_id=new_id(), is_ready=True, created_at=moment, updated_at=moment
    )


def event_of(number: int, size: int) -> bytes:
    """Return an event as an agent server sends it, of about this size."""
    moment = (_FIRST_DAY + timedelta(milliseconds=number)).replace(tzinfo=None)
    event = {
        "id": new_id(),
        "timestamp": moment.isoformat(timespec="microseconds"),
        "source": "agent",
        "kind": "MessageEvent" if number % 2 else "ObservationEvent",
        "text": "",
    }
    event["text"] = "x" * max(0, size - len(msgspec.json.encode(event)))
    return msgspec.json.encode(event)
