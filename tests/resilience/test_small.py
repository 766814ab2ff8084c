"""Rows of the resilience tests at a small scale, and what they compare with: tried at every change."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.resilience.__main__ import in_order, run_all
from tests.resilience.book import Figure, Ground, Half, Outcome, Row
from tests.resilience.results import Line, line_of, read, write
from tests.resilience.rows import ROWS
from tests.resilience.rows.kills import Journal, compare_with
from tests.resilience.rows.told_once import Sent, fits

SCALE = 0.002
SMALL = (
    *("kills", "settings", "capacity", "access", "users", "origins", "malformed", "revocation"),
    *("canaries", "containment", "egress", "ports", "races", "archives", "repositories"),
    *("floods-inside", "front-end", "inside", "automations", "issues", "rest"),
)
"""The rows that take a moment on two cores; `poe resilience` runs the others, too."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.name in SMALL], ids=lambda row: row.name
)
async def test_a_promise_holds(row: Row, tmp_path: Path) -> None:
    outcome = await row.run(Ground(tmp_path, scale=SCALE, seed=8))
    # How long a thing takes is for the full resilience tests, on a machine of its own.
    missed = [str(one) for one in outcome.figures if not one.is_met and not one.is_time]
    assert (missed, outcome.problems) == ([], ())


async def nothing(_: Ground) -> Outcome:
    return Outcome(did="nothing", figures=())


def test_a_run_replaces_the_line_of_its_row_only(tmp_path: Path) -> None:
    rows = [
        Row(name=name, half=half, promise=f"{name} | holds", run=nothing)
        for name, half in (("first", Half.LOST), ("second", Half.LOST), ("third", Half.IN))
    ]
    good = Outcome(did="much", figures=(Figure(what="lost", value=0, at_most=0),))
    bad = Outcome(did="more", figures=(Figure(what="done", value=1, at_least=2),))
    file = tmp_path / "RESULTS.md"
    lines = [line_of(row, good, scale=1, seed=8, seconds=1) for row in rows]
    write(file, rows, lines)
    write(file, rows, [], whole="all of it")
    write(file, rows, [line_of(rows[1], bad, scale=1, seed=8, seconds=1)])

    found = {line.name: line.text for line in read(file)}
    assert [Line(name=name, text=found[name]) for name in ("first", "third")] == [
        lines[0],
        lines[2],
    ]
    assert "**missed**" in found["second"]
    assert "1 done (at least 2)" in found["second"]
    parts = ["Last run of all rows: all of it", "## Nothing lost", "## Nobody in"]
    places = [file.read_text().index(part) for part in parts]
    assert places == sorted(places)


async def test_a_row_that_is_alone_has_nothing_beside_it_until_it_shares() -> None:
    def row(name: str, *, is_alone: bool = False, is_alone_at_first: bool = False) -> Row:
        return Row(
            name=name,
            half=Half.LOST,
            promise=name,
            run=nothing,
            is_alone=is_alone,
            is_alone_at_first=is_alone_at_first,
        )

    rows = [row(name) for name in ("short", "other", "long")]
    alone = [row("memory", is_alone_at_first=True), row("abuse", is_alone=True)]
    seconds = {"memory": 1800, "abuse": 150, "short": 1, "other": 2, "long": 3}
    going: set[str] = set()
    seen: dict[str, set[str]] = {}
    rest_is_done = asyncio.Event()

    async def run(row: Row, share: Callable[[], None]) -> None:
        seen[row.name] = set(going)
        going.add(row.name)
        await asyncio.sleep(0)
        assert row in rows or going == {row.name}
        if row.name == "memory":
            share()
            await rest_is_done.wait()
        going.discard(row.name)
        if len(seen) == len(rows + alone) and going == {"memory"}:
            rest_is_done.set()

    await run_all(in_order(rows + alone, seconds), 2, run)
    assert seen == {
        "abuse": set(),
        "memory": set(),
        "long": {"memory"},
        "other": {"memory"},
        "short": {"memory"},
    }


def test_what_is_lost_or_half_applied_is_found() -> None:
    journal = Journal(None)
    journal.events = {1: True, 5: True, 9: False, 13: False}
    journal.names = {"KEPT_1": True, "KEPT_2": True, "KEPT_3": True, "KEPT_4": True}
    journal.going, journal.gone = {"KEPT_3", "KEPT_4"}, {"KEPT_3"}
    journal.titles, journal.title_from = ["old", "acknowledged", "begun"], 1
    numbers = [1, 2, 3, 4, 5, 6, 7, 9]
    tables = {
        "events": [(f"00000000-0000-4000-8000-{number:012d}",) for number in numbers],
        "secrets": [("KEPT_1",), ("KEPT_3",), ("KEPT_9",)],
        "conversations": [("old",)],
    }

    def query(sql: str, *_values: object) -> list[tuple[str]]:
        return next(rows for name, rows in tables.items() if f"FROM {name}" in sql)

    lost, half = compare_with(query, "any", journal, journal)
    assert lost == ["events 5: 3 of 4", "secret KEPT_2", "removal of KEPT_3", "title 'old'"]
    assert half == ["events 9: 1 of 4", "secret KEPT_9 that nobody made"]


def test_what_is_told_in_another_order_is_found() -> None:
    sent = [
        Sent(text="one", is_sure=True),
        Sent(text="one", is_sure=False),
        Sent(text="two", is_sure=True),
    ]
    assert fits(sent, ["one", "two"])
    assert fits(sent, ["one", "one", "two"])
    for told in (["two", "one"], ["one"], ["one", "one", "one", "two"], ["one", "two", "one"]):
        assert not fits(sent, told)
