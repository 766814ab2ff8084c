"""`poe resilience`: tries every promise at full size, several at a time, and writes RESULTS.md."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import click

from agentsvc.base.values import monotonic, now
from tests.resilience.apart import Run, run_apart
from tests.resilience.book import Row
from tests.resilience.results import RESULTS, line_of, machine, seconds_of, write
from tests.resilience.rows import ROWS

_AT_ONCE: Final = 4


@click.command()
@click.option("--only", multiple=True, metavar="ROW", help="Only this row; may be repeated.")
@click.option("--scale", default=1.0, help="Part of the full counts; 1 is all.")
@click.option("--seed", default=8, help="What chance begins with.")
@click.option("--at-once", default=_AT_ONCE, help="How many rows run beside each other.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the results; otherwise RESULTS.md beside this program for full counts.",
)
def main(
    *, only: tuple[str, ...], scale: float, seed: int, at_once: int, results: Path | None
) -> None:
    """Run the rows, print what they find, and fail if a promise is broken."""
    unknown = set(only) - {row.name for row in ROWS}
    if unknown:
        names = ", ".join(row.name for row in ROWS)
        raise click.BadParameter(f"no row {', '.join(sorted(unknown))}; there are {names}")
    file = results or (RESULTS if scale == 1 else None)
    click.echo(f"seed {seed}, scale {scale:g}, {at_once} at once, {machine()}")
    chosen = [row for row in ROWS if not only or row.name in only]
    began, begun_on = monotonic(), machine()
    try:
        met = asyncio.run(_run(chosen, Run(scale=scale, seed=seed), at_once, file))
    except asyncio.CancelledError as exc:
        raise click.ClickException("It was asked to end") from exc
    said = f"{met} of {len(chosen)} rows met, in {(monotonic() - began) / 60:.1f} minutes"
    click.echo(said)
    if file is not None and not only:
        asked = f"poe resilience --scale {scale:g} --seed {seed} --at-once {at_once}"
        write(file, ROWS, [], whole=f"`{asked}`, {now():%Y-%m-%d %H:%M} UTC: {said}; {begun_on}")
    raise SystemExit(0 if met == len(chosen) else 1)


async def _run(rows: list[Row], run: Run, at_once: int, file: Path | None) -> int:
    """Run the rows and note what each has found as it ends; return how many promises are met."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    met = 0

    async def one(row: Row, share: Callable[[], None]) -> None:
        nonlocal met
        took = await run_apart(row, run, share)
        line = line_of(row, took.outcome, scale=run.scale, seed=run.seed, seconds=took.seconds)
        click.echo(f"\n{line.text}")
        for problem in took.outcome.problems[:50]:
            click.echo(f"  {problem}", err=True)
        if file is not None:
            write(file, ROWS, [line])
        met += took.outcome.is_met

    await run_all(in_order(rows, seconds_of(RESULTS)), at_once, one)
    return met


def in_order(rows: Iterable[Row], seconds: Mapping[str, float]) -> list[Row]:
    """Return in which order rows are begun, by how long they took before.

    Those that are alone come first, then those that are so at first, so that the others run beside
    the rest of them: the longest first.
    """

    def rank(row: Row) -> tuple[bool, bool, float]:
        return not row.is_alone, not row.is_alone_at_first, -seconds.get(row.name, 0.0)

    return sorted(rows, key=rank)


async def run_all(
    rows: Iterable[Row],
    at_once: int,
    run: Callable[[Row, Callable[[], None]], Awaitable[None]],
) -> None:
    """Run the rows in this order, so many at once, and nothing beside one that is alone."""

    async def one(row: Row, shared: asyncio.Event) -> None:
        try:
            await run(row, shared.set)
        finally:
            shared.set()

    going: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as group:
        for row in rows:
            is_alone = row.is_alone or row.is_alone_at_first
            while len(going) >= (1 if is_alone else at_once):
                _, going = await asyncio.wait(going, return_when=asyncio.FIRST_COMPLETED)
            shared = asyncio.Event()
            going.add(group.create_task(one(row, shared)))
            if is_alone:
                await shared.wait()


if __name__ == "__main__":
    main()
