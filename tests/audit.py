"""Looks for known vulnerabilities in what is installed, the agent's packages included: `poe audit`.

Asks the public index for each package of `.ci/lock.txt`. Where it cannot be reached, which is so on
many build machines, the versions of the lock are the floor: what is older, or not in it, fails.
"""

import importlib.metadata
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import click

from tests.lock import LOCK, PROJECT, canonical, read_lock

_INDEX: Final = "https://pypi.org/pypi/{name}/{version}/json"
_SECONDS: Final = 10.0
_AT_ONCE: Final = 8
_NOT_LOCKED: Final = frozenset({PROJECT, "pip"})
"""What is there without the lock: the project, and what Python itself brings along."""


class OutOfReach(Exception):
    """What is known about vulnerabilities cannot be had."""


def installed() -> dict[str, str]:
    """Return all packages that are installed, with their versions."""
    found = {canonical(one.name): one.version for one in importlib.metadata.distributions()}
    return {name: found[name] for name in sorted(found.keys() - _NOT_LOCKED)}


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


def all_holes(found: Mapping[str, str]) -> list[str]:
    """Return what is known to be wrong with any of these versions; raises OutOfReach."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(holes, name, version) for name, version in found.items()]
        try:
            return [problem for one in waiting for problem in one.result()]
        finally:
            pool.shutdown(cancel_futures=True)


def older(found: Mapping[str, str], floor: Mapping[str, str]) -> list[str]:
    """Return what is older than in the lock, or not in it."""
    return [
        f"{name} {version}: the lock has {floor.get(name, 'none')}"
        for name, version in found.items()
        if name not in floor or _numbers(version) < _numbers(floor[name])
    ]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


@click.command()
def main() -> None:
    """Fail if a package has a known vulnerability, or, out of reach of that, is older than the lock says."""
    floor = {entry.name: entry.version for entry in read_lock().values()}
    found = installed()
    try:
        problems = all_holes(floor | found)
        click.echo(f"{len(floor | found)} packages looked up")
    except OutOfReach as exc:
        problems = older(found, floor)
        click.echo(
            f"what is known of vulnerabilities cannot be reached ({exc});"
            f" {len(found)} packages compared with {LOCK.name}"
        )
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
