"""What is installed, down to the file: `.ci/lock.txt` has each package's version and hashes.

`python -m tests.lock EXTRAS` prints the part of it that an installation with these extras is made
of, for `pip install --require-hashes --no-deps`. It runs before anything is installed, so it
imports the standard library only. `python -m tests.lock --record` resolves again, with uv: it
keeps what fits and adds what is missing; with `--upgrade` it takes the newest of everything. The
parts that the image of sandboxes is made of are in the package, and are written with it.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / ".ci" / "lock.txt"
PROJECT: Final = "agentsvc"
BUILD: Final = ("editables", "setuptools")
"""What the project needs to be installed in place, and packages that come as source only to be built."""
IMAGE_BUILD: Final = "setuptools"
"""What those packages need among the agent server's."""

IMAGE: Final = ROOT / "agentsvc" / "cli" / "sandbox_image"
"""Where the parts of the lock are that the image of sandboxes is made of."""

_PART_HEAD: Final = (
    "# A part of `.ci/lock.txt`, which `python -m tests.lock --record` writes with it.\n"
)
_HEAD: Final = """\
# What the set-up installs, with the hashes that the index publishes: `python -m tests.lock --record`.
# Of Linux on x86_64 and aarch64, Python 3.12 and 3.13; `# via` says which package wants one.
"""
_RESOLVE: Final = (
    *("uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-emit-index-url"),
    *("--no-header", "--annotation-style", "line", "--extra", "dev"),
    *("--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"),
)
_ENTRY: Final = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
_HASH: Final = re.compile(r"--hash=(sha256:[0-9a-f]{64})")
_REQUIREMENT: Final = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^]]*)\])?")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One package of the lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    wanted_by: frozenset[str]
    text: str


def canonical(name: str) -> str:
    """Return the one form that the name of a package has."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(file: Path = LOCK) -> dict[str, Entry]:
    """Return the packages of a lock by name."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    entries = (_entry(text) for text in re.split(r"\n(?=\S)", "\n".join(lines)) if text)
    return {entry.name: entry for entry in entries}


def _entry(text: str) -> Entry:
    found = _ENTRY.match(text)
    if found is None:
        raise SystemExit(f"error: this is no entry of a lock: {text.splitlines()[0]}")
    _, _, via = text.partition("# via ")
    return Entry(
        name=canonical(found[1]),
        version=found[2],
        hashes=tuple(_HASH.findall(text)),
        wanted_by=frozenset(canonical(name) for name in via.split(", ")),
        text=text,
    )


def required(extras: Iterable[str]) -> Iterator[str]:
    """Yield the requirements of the project with these extras, and those to build it."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    yield from told["build-system"]["requires"]
    yield from BUILD
    yield from _with_extras(told["project"], extras)


def _with_extras(project: Mapping[str, object], extras: Iterable[str]) -> Iterator[str]:
    table = project["optional-dependencies"]
    dependencies = project["dependencies"]
    assert isinstance(table, dict)
    assert isinstance(dependencies, list)
    yield from dependencies
    waiting = list(extras)
    for extra in waiting:
        if extra not in table:
            raise SystemExit(f"error: there is no extra `{extra}`, only {', '.join(table)}")
        for requirement in table[extra]:
            name, more = _parts(requirement)
            if name == PROJECT:
                waiting += more
            else:
                yield requirement


def _parts(requirement: str) -> tuple[str, list[str]]:
    found = _REQUIREMENT.match(requirement)
    assert found is not None, requirement
    return canonical(found[1]), [one.strip() for one in (found[2] or "").split(",") if one.strip()]


def select(lock: Mapping[str, Entry], extras: Iterable[str]) -> list[Entry]:
    """Return what an installation with these extras is made of.

    What a package wants for an extra of its own counts as wanted by it in any case.
    """
    wanted = {_parts(requirement)[0] for requirement in required(extras)}
    if missing := wanted - lock.keys():
        raise SystemExit(f"error: the lock lacks {', '.join(sorted(missing))}; record it again")
    return _with_all_they_want(lock, wanted)


def _with_all_they_want(lock: Mapping[str, Entry], names: Iterable[str]) -> list[Entry]:
    wanted = set(names)
    size = 0
    while len(wanted) > size:
        size = len(wanted)
        wanted |= {entry.name for entry in lock.values() if entry.wanted_by & wanted}
    return [lock[name] for name in sorted(wanted)]


def for_image(lock: Mapping[str, Entry]) -> dict[str, str]:
    """Return the files of the image's parts: what builds, and the agent server with all it wants."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    agent = told["project"]["optional-dependencies"]["agent"]
    parts = {"build.txt": [IMAGE_BUILD], "agent.txt": [_parts(one)[0] for one in agent]}
    return {
        name: _PART_HEAD
        + "".join(f"{entry.text.rstrip()}\n" for entry in _with_all_they_want(lock, wanted))
        for name, wanted in parts.items()
    }


def record(options: Sequence[str]) -> None:
    """Resolve the project with all its extras, and write the lock."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())
    build = "\n".join([*told["build-system"]["requires"], *BUILD])
    command = [*_RESOLVE, *options, "pyproject.toml", "-", "--output-file", str(LOCK)]
    subprocess.run(command, cwd=ROOT, input=build, text=True, check=True)
    LOCK.write_text(_HEAD + LOCK.read_text())
    for name, text in for_image(read_lock()).items():
        (IMAGE / name).write_text(text)


def main(arguments: Sequence[str]) -> None:
    """Print a part of the lock, or record it."""
    match arguments:
        case ["--record", *options]:
            record(options)
        case [extras]:
            parts = select(read_lock(), [one for one in extras.split(",") if one])
            print("\n".join(entry.text for entry in parts))  # noqa: T201  # for pip
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
