"""Plain text for terminals: columns, fields, JSON, yes or no."""

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click

from agentsvc.base import now
from agentsvc.cli import CommandFailed

SHORT_ID: Final = 8
"""How many characters of an id people are shown; commands take any beginning that is enough."""

_SHOWN = 60
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Terminals obey these, too, and JSON does not escape them."""


def columns(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as their widest cell.

    What of the last column goes beyond a width is cut off.
    """
    table = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(head))]
    for row in table:
        cells = (cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        yield line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool) -> None:
    """Print rows as a table, or as JSON with the titles of the columns as names."""
    shown = list(rows)
    lines = columns(head, shown, width=terminal_width())
    print_found(to_records(head, shown), lines, as_json=as_json)


def print_found(found: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print what was found as lines for people, or as the JSON that it came as."""
    for line in [json_text(found)] if as_json else lines:
        click.echo(line)


def to_records(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Return rows with the titles of their columns as names."""
    names = [title.partition(" (")[0].lower().replace(" ", "_") for title in head]
    return [dict(zip(names, row, strict=True)) for row in rows]


def terminal_width() -> int | None:
    """Return how wide the terminal is that is written to, None where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def json_text(value: Any) -> str:
    """Return a value as JSON that people can read, too."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_CONTROLS)


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False).translate(_CONTROLS)


def fields(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each field of a record that says something."""
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        if value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{name.ljust(width)}  {clean(text)}"


def clean(text: str) -> str:
    """Return a text on one line, without what would move a cursor."""
    return "".join(char if char.isprintable() else " " for char in text)


def words(status: str) -> str:
    """Return the status of a start as people write it."""
    return status.lower().replace("_", " ")


def short(text: str | None) -> str:
    """Return as much of a text as a column has room for."""
    known = clean(text or "")
    return known if len(known) <= _SHOWN else f"{known[: _SHOWN - 1]}…"


_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def ago(text: str | None) -> str:
    """Return how long ago a time of the API was, as it stands in a column."""
    if not text:
        return ""
    seconds = (now() - datetime.fromisoformat(text)).total_seconds()
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "now"


def moment(text: str | None) -> str:
    """Return a time of the API as it stands in a column."""
    return (text or "")[:16].replace("T", " ")


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask, unless it is agreed to already; raises CommandFailed where the answer is not yes."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question.rstrip('?')}: nobody is there to ask", "agree with --yes")
    if not click.confirm(question, err=True):
        raise CommandFailed("nothing was done")
