"""Looks for known holes in what the server runs on: `poe audit`.

Asks the public index for each package. Where it cannot be reached, which is so on many build
machines, the versions that were recorded in `.ci/lock.txt` are the floor: an older one fails.
"""

import importlib.metadata
import json
import re
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[1]
LOCK: Final = ROOT / ".ci" / "lock.txt"
_INDEX: Final = "https://pypi.org/pypi/{name}/{version}/json"
_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA: Final = re.compile(r"""extra\s*==""")


class OutOfReach(Exception):
    """What is known about holes cannot be had."""


def installed() -> dict[str, str]:
    """Return the packages that a plain installation brings along, with their versions."""
    found: dict[str, str] = {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = list(_names(project["dependencies"]))
    while waiting:
        name = waiting.pop()
        if name not in found:
            try:
                found[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                # For another system or Python.
                continue
            waiting.extend(_names(importlib.metadata.requires(name) or ()))
    return dict(sorted(found.items()))


def _names(requirements: Iterable[str]) -> Iterator[str]:
    """Yield whom requirements name that no extra asks for."""
    for text in requirements:
        requirement, _, marker = text.partition(";")
        if not _EXTRA.search(marker) and (match := _NAME.match(requirement)):
            yield match.group().lower().replace("_", "-")


def holes(name: str, version: str) -> list[str]:
    """Return what is known to be wrong with a version; raises OutOfReach."""
    url = _INDEX.format(name=name, version=version)
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer:
            told = json.load(answer)
    except (OSError, urllib.error.URLError, ValueError) as exc:
        raise OutOfReach(str(exc)) from exc
    return [
        f"{name} {version}: {one['id']}, mended in {', '.join(one['fixed_in']) or 'no version'}"
        for one in told.get("vulnerabilities", ())
        if not one.get("withdrawn")
    ]


def read_lock(file: Path = LOCK) -> dict[str, str]:
    """Return the recorded versions."""
    lines = (line.partition("#")[0].strip() for line in file.read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def older(found: dict[str, str], lock: dict[str, str]) -> list[str]:
    """Return what is older than recorded, or not recorded."""
    return [
        f"{name} {version}: {lock.get(name, 'nothing')} is recorded"
        for name, version in found.items()
        if name not in lock or _numbers(version) < _numbers(lock[name])
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


@click.command()
@click.option("--record", is_flag=True, help="Write down the versions that are installed.")
def main(*, record: bool) -> None:
    """Fail if a package has a known hole, or, out of reach of that, is older than recorded."""
    found = installed()
    if record:
        head = LOCK.read_text().splitlines(keepends=True) if LOCK.exists() else []
        kept = [line for line in head if line.startswith("#")]
        LOCK.write_text("".join(kept + [f"{name}=={version}\n" for name, version in found.items()]))
    try:
        problems = [problem for name, version in found.items() for problem in holes(name, version)]
        click.echo(f"{len(found)} packages looked up")
    except OutOfReach as exc:
        problems = older(found, read_lock())
        click.echo(f"what is known of holes cannot be reached ({exc}); compared with {LOCK.name}")
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
