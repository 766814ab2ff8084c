"""Plain text output: tables, fields and JSON; and the confirmation prompt."""

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
"""Length of shortened ids in tables; commands accept any unique prefix."""

_MAX_COLUMN = 60
_CONTROLS = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""Control characters that JSON does not escape."""


def columns(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as their widest cell.

    Lines longer than `width` are truncated.
    """
    table = [[clean(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(head))]
    for row in table:
        cells = (cell.ljust(wide) for cell, wide in zip(row, widths, strict=True))
        line = "  ".join(cells).rstrip()
        yield line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, as_json: bool) -> None:
    """Print rows as a table, or as JSON objects with the column titles as keys."""
    shown = list(rows)
    lines = columns(head, shown, width=terminal_width())
    print_found(to_records(head, shown), lines, as_json=as_json)


def print_found(found: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """Print the lines, or with `as_json` the found value as JSON."""
    for line in [json_text(found)] if as_json else lines:
        click.echo(line)


def to_records(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[dict[str, str]]:
    """Return rows as objects with the column titles as keys, in snake case."""
    names = [title.partition(" (")[0].lower().replace(" ", "_") for title in head]
    return [dict(zip(names, row, strict=True)) for row in rows]


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def json_text(value: Any) -> str:
    """Return a value as indented JSON."""
    return json.dumps(value, indent=2, ensure_ascii=False).translate(_CONTROLS)


def json_line(value: Any) -> str:
    """Return a value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False).translate(_CONTROLS)


def fields(record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each field of a record that is not empty."""
    width = max((len(name) for name in record), default=0)
    for name, value in record.items():
        if value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{name.ljust(width)}  {clean(text)}"


def clean(text: str) -> str:
    """Return a text on one line, with control characters replaced by blanks."""
    return "".join(char if char.isprintable() else " " for char in text)


def words(status: str) -> str:
    """Return the status of a start in lower case with blanks."""
    return status.lower().replace("_", " ")


def short(text: str | None) -> str:
    """Return a text truncated to the width of a column."""
    known = clean(text or "")
    return known if len(known) <= _MAX_COLUMN else f"{known[: _MAX_COLUMN - 1]}…"


_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"))


def ago(text: str | None) -> str:
    """Return the age of an API timestamp, such as `3 h ago`."""
    if not text:
        return ""
    seconds = (now() - datetime.fromisoformat(text)).total_seconds()
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "now"


def moment(text: str | None) -> str:
    """Return an API timestamp to the minute, for a column."""
    return (text or "")[:16].replace("T", " ")


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask for confirmation unless `is_agreed`; raises CommandFailed unless confirmed."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{question.rstrip('?')}: not confirmed", "confirm with --yes")
    if not click.confirm(question, err=True):
        raise CommandFailed("aborted, nothing was changed")
