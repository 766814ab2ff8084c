"""The table of mechanisms names every module, and says about how large each mechanism is."""

import re
from collections import Counter
from fnmatch import fnmatchcase
from functools import cache

from tests.rules import ROOT, code_lines

PAGE = ROOT / "agentsvc" / "docs" / "contributing" / "scope.md"
ROW = re.compile(r"^\| ([^|]+) \| (`[^|]+`) \| ([\d,]+) \|", re.MULTILINE)
MAX_OFF = 0.2
"""By how much of a mechanism's lines the table may be wrong."""


@cache
def mechanisms() -> dict[str, tuple[list[str], int]]:
    """Return the patterns of each mechanism and the lines that the page says it has."""
    return {
        name: (re.findall(r"`([^`]+)`", patterns), int(lines.replace(",", "")))
        for name, patterns, lines in ROW.findall(PAGE.read_text())
    }


def mechanism_of(module: str) -> str | None:
    """Return the mechanism with the longest pattern that a module has; `*.py` is one directory."""
    found = [
        (len(pattern), name)
        for name, (patterns, _) in mechanisms().items()
        for pattern in patterns
        if fnmatchcase(module, pattern)
        and (not pattern.endswith("*.py") or pattern.count("/") == module.count("/"))
    ]
    return max(found)[1] if found else None


def test_every_module_is_in_the_table_and_every_mechanism_about_as_large_as_it_says() -> None:
    lines: Counter[str | None] = Counter()
    files = [
        file
        for part in ("agentsvc", "plugins")
        for file in sorted((ROOT / part).rglob("*.py"))
        if not {"docs", "deploy", "static"} & set(file.relative_to(ROOT).parts)
    ]
    unknown = []
    for file in files:
        module = file.relative_to(ROOT).as_posix()
        mechanism = mechanism_of(module)
        unknown += [module] * (mechanism is None)
        lines[mechanism] += code_lines(file.read_bytes())
    assert unknown == []
    wrong = {
        name: lines[name]
        for name, (_, told) in mechanisms().items()
        if abs(lines[name] - told) > MAX_OFF * told
    }
    assert wrong == {}, "write these into the table"
