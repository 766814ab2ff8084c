"""What an installation without extras consists of, from what its distributions say of themselves."""

import importlib.metadata
import marshal
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import agentsvc

_HEADER_BYTES: Final = 16
_TOP: Final = Path(agentsvc.__file__).parents[1]
_PACKAGES: Final = ("agentsvc", "plugins")


def closure(name: str) -> frozenset[str]:
    """Return a distribution and all that it needs without extras, by their names."""
    found: set[str] = set()
    waiting: list[tuple[str, frozenset[str]]] = [(canonicalize_name(name), frozenset())]
    seen = set(waiting)
    while waiting:
        wanted, extras = waiting.pop()
        found.add(wanted)
        for needed in _needs(wanted, extras):
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return frozenset(found)


def disk_bytes(names: Iterable[str]) -> int:
    """Return what distributions take on disk, bytecode included."""
    files = {path for name in names for path in _files(importlib.metadata.distribution(name))}
    return sum(_size(path) for path in files)


def _needs(name: str, extras: frozenset[str]) -> Iterator[tuple[str, frozenset[str]]]:
    for text in _said(name):
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield canonicalize_name(needed.name), frozenset(needed.extras)


def _said(name: str) -> list[str]:
    if name != "agentsvc":
        return importlib.metadata.distribution(name).requires or []
    # What an installation in place says of it may be out of date.
    project = tomllib.loads((_TOP / "pyproject.toml").read_text("utf-8"))["project"]
    dependencies: list[str] = project["dependencies"]
    return dependencies


def _files(distribution: Distribution) -> Iterator[Path]:
    if canonicalize_name(distribution.name) == "agentsvc":
        # It may be installed in place, and then lists nothing of itself.
        for package in _PACKAGES:
            yield from (_TOP / package).rglob("*")
    for file in distribution.files or ():
        yield Path(str(distribution.locate_file(file)))


def _size(path: Path) -> int:
    if not path.is_file() or path.suffix == ".pyc":
        return 0
    size = path.stat().st_size
    if path.suffix == ".py":
        code = compile(path.read_bytes(), path, "exec", dont_inherit=True)
        size += _HEADER_BYTES + len(marshal.dumps(code))
    return size
