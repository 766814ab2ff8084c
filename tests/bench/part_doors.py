"""What each door costs at start-up: the server with it switched on, less the one without, in turns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.bench.figures import Figure, Section, Target
from tests.bench.processes import serve_ours
from tests.bench.sizes import Sizes

_MOST: Final = Target(most=10.0)
_LOTS: Final = 3
DOORS: Final[Mapping[str, str]] = {
    "sharing": "[sharing]\nenabled = true\n",
    "MCP server": "[mcp_server]\nenabled = true\n",
    "agent for editors": "[acp_agent]\nenabled = true\n",
    "sign-in": "[sign_in]\nenabled = true\n[sign_in.providers.company]\n"
    'issuer = "https://login.example.com"\nclient_id = "agentsvc"\n',
}


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Start the server with each door and with none, in turns; the first turn does not count."""
    kinds = {"none": "", **DOORS}
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    for turn in range(_LOTS * sizes.starts + 1):
        for name, text in kinds.items():
            file = folder / f"{name}.toml"
            file.write_text(text)
            async with serve_ours(folder / "doors", {"AGENTSVC_CONFIG": str(file)}) as started:
                if turn:
                    told = (1000 * _processor_seconds(started.pid), started.memory_bytes / 1024)
                    seen[name].append(told)
    least = {name: [_lots(one) for one in zip(*found, strict=True)] for name, found in seen.items()}
    processor, memory = least.pop("none")
    figures = [
        figure
        for name, (mine, held) in least.items()
        for figure in (
            Figure(
                name=f"{name}: processor time", unit="ms", ours=_less(mine, processor), target=_MOST
            ),
            Figure(name=f"{name}: memory", unit="KiB", ours=_less(held, memory)),
        )
    ]
    figures.append(Figure(name="processor time without any", unit="ms", ours=processor))
    return Section(
        title="Doors",
        about="What each door adds to `agentsvc serve` until its first answer when it is switched on."
        f" Starts with it and without any take turns; of each of {_LOTS} lots of {sizes.starts} the least"
        " counts, since whatever else the machine does only adds. One that is off is not imported.",
        figures=tuple(figures),
    )


def _lots(values: tuple[float, ...]) -> tuple[float, ...]:
    """Return the least of each lot."""
    return tuple(min(values[lot::_LOTS]) for lot in range(_LOTS))


def _less(found: tuple[float, ...], without: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(one - other for one, other in zip(found, without, strict=True))


def _processor_seconds(pid: int) -> float:
    """Return the time of processors of all threads there are; finer than what the system counts in ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
