"""What was measured, beside the floor that the same machine had in the same run, as a table."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

_COLUMNS: Final = ("figure", "agentsvc", "floor", "ratio", "target", "")
_KEPT_DIGITS: Final = 3
_ABOUT: Final = (
    "Medians, with the least and the most in brackets. The floor is what the bare parts do on the"
    " same machine in the same run, without this package."
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure must keep to: at most or at least so much, of itself or of its floor."""

    most: float | None = None
    least: float | None = None
    of_floor: bool = False

    def text(self, unit: str) -> str:
        """Return the target in words."""
        sign, limit = ("<", self.most) if self.most is not None else (">=", self.least)
        return (
            f"{sign} {limit:g} x floor" if self.of_floor else f"{sign} {limit:,g} {unit}".rstrip()
        )

    def is_met(self, median: float, floor: float | None) -> bool:
        """Tell whether a median keeps to it; one that needs a floor does not without."""
        if self.of_floor and not floor:
            return False
        value = median / floor if self.of_floor and floor else median
        if self.most is not None:
            return value < self.most
        return self.least is None or value >= self.least


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured a few times, here and on the bare parts it is made of."""

    name: str
    unit: str
    ours: tuple[float, ...]
    floor: tuple[float, ...] = ()
    target: Target | None = None

    @property
    def median(self) -> float:
        """The middle one of what was measured."""
        return statistics.median(self.ours)

    @property
    def floor_median(self) -> float | None:
        """The middle one of the floor, or None where there is none."""
        return statistics.median(self.floor) if self.floor else None

    @property
    def verdict(self) -> str:
        """Whether the target is met, nothing without one."""
        if self.target is None:
            return ""
        return "met" if self.target.is_met(self.median, self.floor_median) else "missed"

    def cells(self) -> tuple[str, ...]:
        """Return the texts of its row."""
        floor = self.floor_median
        return (
            self.name,
            _spread(self.ours, self.unit),
            _spread(self.floor, self.unit) if self.floor else "",
            f"{self.median / floor:.2f}" if floor else "",
            self.target.text(self.unit) if self.target else "",
            self.verdict,
        )


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one part, and what a reader has to know of them."""

    title: str
    about: str
    figures: tuple[Figure, ...]


def table(figures: Iterable[Figure]) -> str:
    """Return the figures as a table in Markdown, aligned so that it reads well as plain text, too."""
    rows = [_COLUMNS, *(figure.cells() for figure in figures)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [_line(row, widths) for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def document(
    sections: Iterable[Section], facts: Sequence[tuple[str, str]], former: str = ""
) -> str:
    """Return what was measured as a document, with what a former one says of other parts."""
    chapters = {text.partition("\n")[0]: text.strip() for text in former.split("\n## ")[1:]}
    chapters |= {section.title: _chapter(section, facts) for section in sections}
    parts = ["# What the server costs", _ABOUT, *(f"## {text}" for text in chapters.values())]
    return "\n\n".join(parts) + "\n"


def _chapter(section: Section, facts: Sequence[tuple[str, str]]) -> str:
    parts = [section.title, section.about]
    parts += ["\n".join(f"- {name}: {value}" for name, value in facts)] if facts else []
    parts += [table(section.figures)] if section.figures else []
    return "\n\n".join(parts)


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value below which this part of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return (
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
    )


def _spread(values: Sequence[float], unit: str) -> str:
    median = _number(statistics.median(values))
    if len(values) == 1:
        return f"{median} {unit}".rstrip()
    return f"{median} {unit} ({_number(min(values))} to {_number(max(values))})"


def _number(value: float) -> str:
    """Return a number with three digits that count, none of them behind a comma above 100."""
    if not value:
        return "0"
    digits = max(0, _KEPT_DIGITS - len(f"{abs(value):.0f}")) if abs(value) >= 1 else _KEPT_DIGITS
    return f"{value:,.{digits}f}"
