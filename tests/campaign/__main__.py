"""`poe campaign`: tries every promise at full size, one after the other, and writes RESULTS.md."""

import asyncio
import tempfile
import traceback
from pathlib import Path

import click

from agentsvc.values import monotonic
from tests.campaign.book import Figure, Ground, Outcome, Row
from tests.campaign.results import RESULTS, line_of, machine, write
from tests.campaign.rows import ROWS


@click.command()
@click.option("--only", multiple=True, metavar="ROW", help="Only this row; may be repeated.")
@click.option("--scale", default=1.0, help="Part of the full counts; 1 is all.")
@click.option("--seed", default=8, help="What chance begins with.")
@click.option(
    "--results",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File for the results; otherwise RESULTS.md beside this program for full counts.",
)
def main(*, only: tuple[str, ...], scale: float, seed: int, results: Path | None) -> None:
    """Run the rows, print what they find, and fail if a promise is broken."""
    unknown = set(only) - {row.name for row in ROWS}
    if unknown:
        names = ", ".join(row.name for row in ROWS)
        raise click.BadParameter(f"no row {', '.join(sorted(unknown))}; there are {names}")
    file = results or (RESULTS if scale == 1 else None)
    click.echo(f"seed {seed}, scale {scale:g}, {machine()}")
    chosen = [row for row in ROWS if not only or row.name in only]
    # A list, so that no row is left out after one that fails.
    met = [_try(row, scale, seed, file) for row in chosen]
    click.echo(f"{sum(met)} of {len(met)} rows met")
    raise SystemExit(0 if all(met) else 1)


def _try(row: Row, scale: float, seed: int, file: Path | None) -> bool:
    """Run a row and note what it has found; one that breaks off is missed."""
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="campaign-") as directory:
        try:
            outcome = asyncio.run(row.run(Ground(Path(directory), scale=scale, seed=seed)))
        except Exception as exc:  # noqa: BLE001  # whatever it is, the other rows go on
            click.echo(traceback.format_exc(), err=True)
            broken = Figure(what="runs that broke off", value=1, at_most=0)
            outcome = Outcome(did=f"broke off: {type(exc).__name__}", figures=(broken,))
    seconds = monotonic() - began
    line = line_of(row, outcome, scale=scale, seed=seed, seconds=seconds)
    click.echo(f"\n{line.text}")
    for problem in outcome.problems[:50]:
        click.echo(f"  {problem}", err=True)
    if file is not None:
        write(file, ROWS, [line])
    return outcome.is_met


if __name__ == "__main__":
    main()
