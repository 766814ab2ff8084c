"""Reconnects to a long log while it grows: what was told must be the log, whole and in order."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import click
import msgspec

from agentsvc.base.bus import EventBus
from agentsvc.base.values import monotonic
from agentsvc.config.data_directory import DataDirectory
from agentsvc.conversations.event_log import EventLog
from agentsvc.storage.database import Database, Transaction
from tests.bench.rig import client_of, feeder_of, run
from tests.http.v1.streaming import Feeder, events
from tests.service import Client
from tests.streams import Stream, open_lines, open_socket, path_of

BATCH: Final = 2000
BUFFER_BYTES: Final = 64 * 1024
LIVE_PART: Final = 20
"""One event of so many is written while readers read."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with numbers that should be all of a range, once and in order."""

    gaps: int
    duplicates: int
    reorders: int

    def __add__(self, other: "Faults") -> "Faults":
        return Faults(
            gaps=self.gaps + other.gaps,
            duplicates=self.duplicates + other.duplicates,
            reorders=self.reorders + other.reorders,
        )

    @property
    def any(self) -> bool:
        return self != Faults(gaps=0, duplicates=0, reorders=0)


def find_faults(told: Sequence[int], expected: range) -> Faults:
    """Compare numbers with a range; one that is no part of it counts as out of order."""
    seen: set[int] = set()
    duplicates = reorders = 0
    highest = expected.start - 1
    for number in told:
        if number in seen:
            duplicates += 1
        elif number < highest or number not in expected:
            reorders += 1
        seen.add(number)
        highest = max(highest, number)
    return Faults(
        gaps=sum(number not in seen for number in expected),
        duplicates=duplicates,
        reorders=reorders,
    )


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation's log: first what the agent tells by itself, then events 1, 2, 3, ..."""

    conversation_id: str
    first: int
    """The number in the log of the event 1."""


@click.command()
@click.option("--events", "count", default=1_000_000, help="Events in the log at the end.")
@click.option("--reconnects", default=10_000, help="Connections that are made in all.")
def main(count: int, reconnects: int) -> None:
    """Print gaps, duplicates and reorders; fail unless there are none."""
    faults = asyncio.run(soak(count, reconnects))
    click.echo(f"gaps {faults.gaps}, duplicates {faults.duplicates}, reorders {faults.reorders}")
    raise SystemExit(1 if faults.any else 0)


async def soak(count: int, reconnects: int) -> Faults:
    """Read what is stored and what is being written, at once, each with half the reconnects."""
    live = count // LIVE_PART
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder) / "data"
        async with (
            run("tests.bench.server", str(data_dir), "") as server,
            client_of(server) as client,
            feeder_of(client) as feeder,
        ):
            first = len(await client.events(feeder.conversation_id))
            log = Log(conversation_id=feeder.conversation_id, first=first)
            began = monotonic()
            await _store(data_dir, feeder.conversation_id, count - live)
            click.echo(f"{count - live} events stored in {monotonic() - began:.0f} s")
            border, end = first + count - live, first + count
            began = monotonic()
            async with asyncio.TaskGroup() as group:
                old = group.create_task(_read(client, log, range(border), reconnects // 2))
                new = group.create_task(
                    _read(client, log, range(border, end), reconnects - reconnects // 2)
                )
                group.create_task(_write(feeder, range(count - live + 1, count + 1)))
            click.echo(f"{reconnects} reconnects in {monotonic() - began:.0f} s")
            return old.result() + new.result()


async def _store(data_dir: Path, conversation_id: str, count: int) -> None:
    """Put events into the log, past the server, which nobody reads yet."""
    database = await Database.open(DataDirectory(path=data_dir).database)
    log = EventLog(database, EventBus(), store_deltas=False)
    try:
        for first in range(1, count + 1, BATCH):
            batch = events(min(BATCH, count + 1 - first), first=first)
            raw = [msgspec.json.encode(event) for event in batch]

            async def append(tx: Transaction, raw: list[bytes] = raw) -> None:
                await log.append(tx, conversation_id, raw)

            await database.write(append)
    finally:
        await database.close()


async def _write(feeder: Feeder, numbers: range) -> None:
    """Report events as a sandbox does, little by little."""
    for first in numbers[::20]:
        await feeder.send(events(min(20, numbers.stop - first), first=first))


async def _read(client: Client, log: Log, wanted: range, reconnects: int) -> Faults:
    """Read numbers of the log over so many connections, of both kinds in turns."""
    seqs: list[int] = []
    bodies: list[int] = []
    for i in range(reconnects):
        share = len(wanted) * (i + 1) // reconnects - len(seqs)
        after = seqs[-1] if seqs else wanted.start - 1
        try:
            async with _open(client, log, after, is_socket=i % 2 == 0) as stream:
                while share > 0:
                    one = await stream.read()
                    if one is None:
                        break
                    if one.type == "event":
                        seqs.append(int(one.id or -1))
                        # The agent's own events have other ids.
                        is_own = seqs[-1] < log.first
                        bodies += [] if is_own else [int(one.data["id"].rpartition("-")[2])]
                        share -= 1
        except TimeoutError:
            click.echo(f"nothing came behind {seqs[-1:]}")
            break
    first = max(wanted.start, log.first)
    numbers = range(first - log.first + 1, wanted.stop - log.first + 1)
    return find_faults(seqs, wanted) + find_faults(bodies, numbers)


def _open(
    client: Client, log: Log, after: int, *, is_socket: bool
) -> AbstractAsyncContextManager[Stream]:
    path = path_of(log.conversation_id, after if after >= 0 else None)
    if is_socket:
        return open_socket(client, path)
    return open_lines(client, path, buffer_bytes=BUFFER_BYTES)


if __name__ == "__main__":
    main()
