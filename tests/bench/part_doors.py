"""What each door costs at start-up: the server with it switched on, less the one without."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.figures import Figure, Section, Target
from tests.bench.sizes import Sizes

_TURNS: Final = 4
"""How often so many starts are made: what else the machine does is more than what a door costs."""
_took = msgspec.json.Decoder(dict[str, list[float]])


async def measure(sizes: Sizes, folder: Path) -> Section:
    """Start the server with each door and with none, in turns."""
    program = ("-m", "tests.bench.door_starts", str(folder / "doors"), str(_TURNS * sizes.starts))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *program, stdout=asyncio.subprocess.PIPE
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0
    least = {name: min(found) for name, found in _took.decode(output).items()}
    without = least.pop("none")
    figures = [
        Figure(
            name=f"{name} on, less without",
            unit="ms",
            ours=(found - without,),
            target=Target(most=10.0),
        )
        for name, found in least.items()
    ]
    return Section(
        title="Doors",
        about="Milliseconds of a processor from the plugins to the first answer, in forks of a process that has"
        " loaded what every server has: with one door switched on, less without any in the same run."
        f" They take turns; of {_TURNS * sizes.starts} of each the least counts, since whatever else the machine"
        " does only adds. A door that is off is not imported.",
        figures=(*figures, Figure(name="without any", unit="ms", ours=(without,))),
    )
