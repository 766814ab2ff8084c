"""How figures are judged and shown, and that what takes them still runs."""

import asyncio
from pathlib import Path

import pytest

from agentsvc.conversations.event_log import read_head
from tests.bench.__main__ import measure
from tests.bench.figures import Figure, Section, Target, document, percentile, table
from tests.bench.load import Work, as_many_as_can_be, in_turns, one_by_one, paced
from tests.bench.part_pages import event_of
from tests.bench.sizes import SMALL, Sizes


@pytest.mark.parametrize(
    ("target", "median", "floor", "is_met"),
    [
        (Target(most=25), 24.9, None, True),
        (Target(most=25), 25.0, None, False),
        (Target(least=4000), 4000.0, None, True),
        (Target(least=4000), 3999.0, 9000.0, False),
        (Target(most=2, of_floor=True), 1.9, 1.0, True),
        (Target(most=2, of_floor=True), 2.0, 1.0, False),
        (Target(most=2, of_floor=True), 1.0, None, False),
    ],
)
def test_a_target_is_met_or_not(
    target: Target, median: float, floor: float | None, *, is_met: bool
) -> None:
    assert target.is_met(median, floor) is is_met


def test_a_table_shows_the_median_its_ends_and_the_ratio() -> None:
    figures = [
        Figure(
            name="reports",
            unit="ms",
            ours=(30.0, 1.5, 20.0),
            floor=(10.0,),
            target=Target(most=1.5, of_floor=True),
        ),
        Figure(name="stored", unit="/s", ours=(4321.0,), target=Target(least=4000)),
        Figure(name="nothing", unit="", ours=(0.0,)),
    ]
    shown = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in table(figures).split("\n")
    ]
    assert shown[2:] == [
        ["reports", "20.0 ms (1.50 to 30.0)", "10.0 ms", "2.00", "< 1.5 x floor", "missed"],
        ["stored", "4,321 /s", "", "", ">= 4,000 /s", "met"],
        ["nothing", "0", "", "", "", ""],
    ]
    section = Section(title="One", about="Two.", figures=tuple(figures))
    text = document([section], [("date", "today")])
    assert "- date: today\n" in text
    assert text.index("## One") < text.index("Two.") < text.index("| reports")


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([5.0, 1.0, 3.0], 0.5) == 3.0
    assert percentile([float(n) for n in range(100)], 0.99) == 99.0
    assert percentile([1.0], 0.99) == 1.0


def test_what_other_parts_found_stays_in_a_document() -> None:
    one, two = (Figure(name=name, unit="s", ours=(1.0,)) for name in ("early", "late"))
    first, second = (
        Section(title=title, about="About it.", figures=(one,)) for title in ("First", "Second")
    )
    former = document([first, second], [("date", "then")])
    again = Section(title="First", about="Anew.", figures=(two,))
    third = Section(title="Third", about="More.", figures=(two,))
    text = document([again, third], [("date", "now")], former)
    assert [line for line in text.splitlines() if line.startswith(("## ", "- "))] == [
        *("## First", "- date: now"),
        *("## Second", "- date: then"),
        *("## Third", "- date: now"),
    ]
    assert text.count("| early") == 1
    assert document([], [], text) == text


async def test_requests_are_made_as_often_as_is_said() -> None:
    calls = 0

    async def work() -> None:
        nonlocal calls
        calls += 1

    assert len(await one_by_one(work, 5)) == 5
    assert [len(times) for times in await in_turns([work, work], 5)] == [5, 5]
    assert len((await paced(work, per_second=500, seconds=0.02)).took_seconds) == 10
    before = calls
    assert await as_many_as_can_be(_unhurried(work), seconds=0.02, at_once=2) > 0
    assert calls > before


async def test_a_part_that_fails_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    figure = Figure(name="one", unit="s", ours=(1.0,))

    async def works(_sizes: Sizes, folder: Path) -> Section:
        return Section(title="Works", about=folder.name, figures=(figure,))

    async def fails(_sizes: Sizes, _folder: Path) -> Section:
        async with asyncio.TaskGroup() as group:
            group.create_task(_fail())
        raise AssertionError

    sections = await measure(SMALL, {"works": works, "fails": fails, "again": works})
    assert [section.title for section in sections] == ["Works", "Fails", "Works"]
    assert [len(section.figures) for section in sections] == [1, 0, 1]
    assert sections[1].about == "Not measured: ValueError, it is broken."
    assert "ValueError" in capsys.readouterr().err
    assert "## Fails\n\nNot measured" in document(sections, [])


async def test_a_part_that_does_not_end_is_given_up() -> None:
    async def hangs(_sizes: Sizes, _folder: Path) -> Section:
        await asyncio.Event().wait()
        raise AssertionError

    (section,) = await measure(SMALL, {"hangs": hangs}, max_seconds=0.05)
    assert section.about.startswith("Not measured: TimeoutError")


async def _fail() -> None:
    raise ValueError("it is broken\nat length")


def _unhurried(work: Work) -> Work:
    async def later() -> None:
        await asyncio.sleep(0.001)
        await work()

    return later


@pytest.mark.parametrize("size", [200, 300])
def test_a_reported_event_has_its_size(size: int) -> None:
    event = event_of(7, size)
    assert len(event) == size
    assert read_head(event) is not None
