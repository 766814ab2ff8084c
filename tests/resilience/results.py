"""The table of results: one line for each row, which only a new run of that row replaces."""

import os
import platform
import re
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

import agentsvc
from agentsvc.base.values import now
from tests.resilience.book import Half, Outcome, Row

RESULTS: Final = Path(__file__).parent / "RESULTS.md"
_HEAD: Final = """\
# What the resilience tests have found

Written by the tests themselves (`poe resilience`, or `poe resilience --only ROW`); each line is of the
last run of its row and says when, how large and on what that was. The server is always
`agentsvc serve`, a process of its own on real SQLite. Chance comes from the seed, which repeats it.
"""
_WHOLE: Final = "Last run of all rows: "
_TOOK: Final = re.compile(r"--scale ([0-9.e-]+) .* ([0-9]+) s; agentsvc ")
_COLUMNS: Final = "| row | promise | what was done | figures | verdict | run |"


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A row's part of the table."""

    name: str
    text: str


def line_of(row: Row, outcome: Outcome, *, scale: float, seed: int, seconds: float) -> Line:
    """Return what the table says of a run."""
    verdict = "met" if outcome.is_met else "**missed**"
    figures = "; ".join(map(str, outcome.figures))
    ran = (
        f"`poe resilience --only {row.name} --scale {scale:g} --seed {seed}`,"
        f" {now():%Y-%m-%d %H:%M} UTC, {seconds:.0f} s; {machine()}"
    )
    cells = (f"`{row.name}`", row.promise, outcome.did, figures, verdict, ran)
    return Line(name=row.name, text="| " + " | ".join(map(_cell, cells)) + " |")


def machine() -> str:
    """Return the versions, and the class of the machine, that figures depend on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"agentsvc {agentsvc.__version__}, Python {platform.python_version()},"
        f" SQLite {sqlite3.sqlite_version}, Linux {platform.release().split('-')[0]},"
        f" {os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[1]:.0f}"
    )


def write(file: Path, rows: Iterable[Row], lines: Iterable[Line], *, whole: str = "") -> None:
    """Replace the lines of these rows, and what is said of the whole; the others stay as they are."""
    known = {line.name: line for line in read(file)} | {line.name: line for line in lines}
    whole = f"{_WHOLE}{whole}\n" if whole else _whole(file)
    text = _HEAD + (f"\n{whole}" if whole else "")
    ordered = list(rows)
    for half in Half:
        found = [known[row.name].text for row in ordered if row.half is half and row.name in known]
        text += f"\n## {half}\n\n{_COLUMNS}\n|---|---|---|---|---|---|\n" + "".join(
            f"{line}\n" for line in found
        )
    # All of it or nothing, whenever this is broken off.
    made = file.with_name(f"{file.name}.new")
    made.write_text(text)
    made.replace(file)


def read(file: Path) -> list[Line]:
    """Return the lines of the table that a file has."""
    texts = file.read_text().splitlines() if file.exists() else []
    return [Line(name=text.split("`")[1], text=text) for text in texts if text.startswith("| `")]


def seconds_of(file: Path) -> dict[str, float]:
    """Return how long each row of a file would have taken at full size, going by its last run."""
    found = {line.name: _TOOK.search(line.text) for line in read(file)}
    return {name: float(took[2]) / float(took[1]) for name, took in found.items() if took}


def _whole(file: Path) -> str:
    texts = file.read_text().splitlines() if file.exists() else []
    return "".join(f"{text}\n" for text in texts if text.startswith(_WHOLE))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
