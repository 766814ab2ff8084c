"""`poe bench`: every figure of the server beside its floor, as a table, and `RESULTS.md`."""

import asyncio
import importlib.metadata
import os
import platform
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from agentsvc import __version__
from agentsvc.values import now
from tests.bench import part_api, part_idle, part_pages, part_reports, part_start, part_streams
from tests.bench.figures import Section, document, table
from tests.bench.sizes import FULL, SMALL, Sizes
from tests.service import Client

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
PARTS: Final = {
    "start": part_start.measure,
    "api": part_api.measure,
    "pages": part_pages.measure,
    "reports": part_reports.measure,
    "streams": part_streams.measure,
    "idle": part_idle.measure,
}
_VERSIONS: Final = ("aiohttp", "msgspec")
_PATIENCE_SECONDS: Final = 120.0


@click.command()
@click.option("--against", metavar="URL", help="Measure the API of any server instead.")
@click.option("--key", envvar="BENCH_KEY", help="A key of that server.")
@click.option("--only", type=click.Choice(list(PARTS)), multiple=True, help="Only some parts.")
@click.option("--small", is_flag=True, help="Do so little that only the code is tried.")
@click.option("--save", is_flag=True, help="Write RESULTS.md although only some parts ran.")
def main(
    *, against: str | None, key: str | None, only: Sequence[str], small: bool, save: bool
) -> None:
    """Print what the server costs; all parts together are written to tests/bench/RESULTS.md."""
    sizes = SMALL if small else FULL
    if against:
        _show(asyncio.run(_measure_against(sizes, against.rstrip("/"), key)))
        return
    sections = asyncio.run(measure(sizes, only or list(PARTS)))
    if save or not (only or small):
        RESULTS.write_text(document(sections, facts("poe bench")), "utf-8")


async def measure(sizes: Sizes, names: Sequence[str]) -> list[Section]:
    """Measure some parts, one after the other, and print each when it is done."""
    sections = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            sections.append(await PARTS[name](sizes, Path(folder)))
        _show(sections[-1])
    return sections


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


async def _measure_against(sizes: Sizes, url: str, key: str | None) -> Section:
    client = Client(url, key, patience=_PATIENCE_SECONDS)
    try:
        return await part_api.measure_against(sizes, client)
    finally:
        await client.close()


def _show(section: Section) -> None:
    click.echo(f"\n{section.title}. {section.about}\n\n{table(section.figures)}")


if __name__ == "__main__":
    main()
