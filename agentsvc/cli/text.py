"""Plain text for terminals: columns, lengths of time."""

from collections.abc import Iterable, Iterator, Sequence


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table whose columns are as wide as their widest cell."""
    table = [head, *rows]
    widths = [max(len(row[index]) for row in table) for index in range(len(head))]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
