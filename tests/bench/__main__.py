"""`poe bench`: every figure of the server beside its floor, as a table, and `RESULTS.md`."""

import asyncio
import gc
import importlib.metadata
import os
import platform
import sqlite3
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import click

from agentsvc import __version__
from agentsvc.base.values import monotonic, now
from tests.bench import (
    part_agents,
    part_api,
    part_doors,
    part_idle,
    part_mentions,
    part_network,
    part_pages,
    part_reports,
    part_requests,
    part_rest,
    part_start,
    part_streams,
)
from tests.bench.figures import Section, document, table
from tests.bench.sizes import FULL, SMALL, Sizes
from tests.service import Client

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
type Part = Callable[[Sizes, Path], Awaitable[Section]]

PARTS: Final[Mapping[str, Part]] = {
    "start": part_start.measure,
    "doors": part_doors.measure,
    "api": part_api.measure,
    "requests": part_requests.measure,
    "pages": part_pages.measure,
    "reports": part_reports.measure,
    "streams": part_streams.measure,
    "idle": part_idle.measure,
    "rest": part_rest.measure,
    "reclaimed": part_rest.measure_reclaimed,
    "agents": part_agents.measure,
    "mentions": part_mentions.measure,
    "network": part_network.measure,
}
_VERSIONS: Final = ("aiohttp", "msgspec")
_PATIENCE_SECONDS: Final = 120.0
_MAX_SECONDS: Final = 400.0
"""How long one part may take, whatever those before it took; what is not done by then has failed."""


@click.command()
@click.option("--against", metavar="URL", help="Measure the API of any server instead.")
@click.option("--key", envvar="BENCH_KEY", help="A key of that server.")
@click.option("--only", type=click.Choice(list(PARTS)), multiple=True, help="Only some parts.")
@click.option("--small", is_flag=True, help="Do so little that only the code is tried.")
@click.option("--save", is_flag=True, help="Write what only some parts found into RESULTS.md.")
def main(
    *, against: str | None, key: str | None, only: Sequence[str], small: bool, save: bool
) -> None:
    """Print what the server costs; what all parts found is written to tests/bench/RESULTS.md."""
    sizes = SMALL if small else FULL
    began = monotonic()
    # What this process itself is made of is no part of what its requests take.
    gc.freeze()
    parts = {name: PARTS[name] for name in only or PARTS}
    if against:
        parts = {"api": partial(_measure_against, against.rstrip("/"), key)}
    sections = asyncio.run(measure(sizes, parts))
    if save or not (only or small or against):
        options = ["--small"] * small + [f"--only {name}" for name in only]
        told = facts(" ".join(("poe bench", *options)))
        told.append(("took", f"{monotonic() - began:.0f} s"))
        former = RESULTS.read_text("utf-8") if RESULTS.exists() else ""
        RESULTS.write_text(document(sections, told, former), "utf-8")
    if failed := [section.title for section in sections if not section.figures]:
        raise click.ClickException(f"not measured: {', '.join(failed)}")


async def measure(
    sizes: Sizes, parts: Mapping[str, Part], *, max_seconds: float = _MAX_SECONDS
) -> list[Section]:
    """Measure some parts, one after the other, and print each when it is done.

    One that fails, or takes longer than it may, has no figures and says why; others go on.
    """
    sections = []
    for name, part in parts.items():
        measuring = _measure_part(part, sizes, max_seconds)
        [found] = await asyncio.gather(measuring, return_exceptions=True)
        if isinstance(found, Exception):
            traceback.print_exception(found)
            about = f"Not measured: {_reason(found)}."
            sections.append(Section(title=name.capitalize(), about=about, figures=()))
        elif isinstance(found, BaseException):
            raise found
        else:
            sections.append(found)
        _show(sections[-1])
    return sections


async def _measure_part(part: Part, sizes: Sizes, time_limit: float) -> Section:
    # What a process of a part that was broken off still writes must not hide why it was.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with asyncio.timeout(time_limit):
            return await part(sizes, Path(folder))


def _reason(failure: BaseException) -> str:
    """Return what went wrong in one line, of several things the first."""
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    lines = str(failure).splitlines() or ["no reason is given"]
    return f"{type(failure).__name__}, {lines[0]}"


def facts(command: str) -> list[tuple[str, str]]:
    """Return what has to be known to compare figures: what ran, when, and on what sort of machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = [f"agentsvc {__version__}", f"Python {platform.python_version()}"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in _VERSIONS]
    load = os.getloadavg()[2]
    return [
        ("command", f"`{command}`"),
        ("versions", ", ".join([*versions, f"SQLite {sqlite3.sqlite_version}"])),
        ("date", f"{now():%Y-%m-%d %H:%M} UTC"),
        ("machine", f"{os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}"),
        ("load", f"{load:.1f} on average over the last 15 minutes, this run included"),
    ]


async def _measure_against(url: str, key: str | None, sizes: Sizes, _folder: Path) -> Section:
    client = Client(url, key, patience=_PATIENCE_SECONDS)
    try:
        return await part_api.measure_against(sizes, client)
    finally:
        await client.close()


def _show(section: Section) -> None:
    shown = f"\n\n{table(section.figures)}" if section.figures else ""
    click.echo(f"\n{section.title}. {section.about}{shown}")


if __name__ == "__main__":
    main()
