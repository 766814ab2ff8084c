"""Memory and processes of sandboxes on the engine's own disk: written, brought back, and removed.

These are Docker's checkpoints of containers in gVisor, below the container's own directory: only root
reads them, and they go with the container. One is named for the run of the container that it holds,
so that none is taken for that of another run, wherever a removal was cut off.
"""

import asyncio
import logging
import re
from typing import Final

from agentsvc.base import AgentsvcError
from agentsvc.plugin import Isolation

from . import inspection
from .engine import Engine, EngineInfo
from .failures import CONFLICT, NOT_FOUND
from .plan import Json, isolation_of
from .watch import has_told

log = logging.getLogger(__name__)

_REFUSALS: Final = range(400, 600)
_WRITE_SECONDS: Final = 600.0
"""How long the memory of a sandbox may take to disk, and back."""
_CUT_OFF_SECONDS: Final = 120.0
"""After how long what is being written, and was asked for before, counts as cut off."""
_END_SECONDS: Final = 0.1
_PLACED_SECONDS: Final = 60.0
"""How long after its end what a container had may still be put into its place."""


def why_not(facts: EngineInfo, runtime: str) -> str:
    """Say why an engine keeps no containers of a runtime on disk, or nothing where it does."""
    runtime = runtime or facts.default_runtime
    if facts.is_podman:
        return "Podman does it with CRIU, which is not used"
    if not facts.is_experimental:
        return "the engine makes no checkpoints: set `experimental` in its daemon.json"
    if isolation_of(runtime) is not Isolation.GVISOR:
        return "only containers in gVisor are kept on disk: set `runtime` to runsc"
    if runtime not in facts.saving_runtimes:
        return (
            f"the runtime `{runtime}` needs `--net-disconnect-ok`, and not `--network=host`, among its"
            " `runtimeArgs` in the engine's daemon.json, or an open connection ends what is saved"
        )
    return ""


def name_of(container: Json) -> str:
    """Return the name of the checkpoint that holds a container's last run."""
    began = str((container.get("State") or {}).get("StartedAt"))
    return "run" + re.sub(r"\D", "", began)


async def has(engine: Engine, container: Json) -> bool:
    """Say whether the last run of a container, which has ended, is on disk."""
    return name_of(container) in await _names(engine, container)


def is_stuck(exc: AgentsvcError) -> bool:
    """Say whether an engine, ended while it wrote a container, can start that in no way any more."""
    return "id already in use" in exc.message


async def until_written(engine: Engine, container: Json) -> None:
    """Wait until what is being written has ended; one that an engine's end cut off is removed."""
    path = f"containers/{container['Id']}/json"
    for _ in range(int(_CUT_OFF_SECONDS / _END_SECONDS)):
        if not inspection.is_running(await engine.get(path) or {}):
            return
        await asyncio.sleep(_END_SECONDS)
    await drop(engine, container)


async def write(engine: Engine, container: Json) -> None:
    """Write a frozen container to disk and end it; where that fails, it is frozen again or ended.

    It runs for a moment, as an engine does not write what is frozen.
    """
    path = f"containers/{container['Id']}"
    await drop(engine, container)
    await engine.ask("POST", f"{path}/unpause", expect=(CONFLICT,))
    made = await engine.ask(
        "POST",
        f"{path}/checkpoints",
        body={"CheckpointID": name_of(container), "Exit": True},
        expect=_REFUSALS,
        time_limit=_WRITE_SECONDS,
    )
    if made is not None:
        await until_written(engine, container)
        return
    seen = await engine.get(f"{path}/json") or {}
    has_ended = not inspection.is_running(seen)
    log.warning(
        "sandbox not written to disk, as the engine's log says",
        extra={"container": container["Id"], "memory": "lost" if has_ended else "kept"},
    )
    if not has_ended:
        await engine.ask("POST", f"{path}/pause", expect=(CONFLICT,))


async def bring_back(engine: Engine, container: Json) -> bool:
    """Let a container go on from disk; say whether it does, and else remove it, but for its volumes."""
    path = f"containers/{container['Id']}"
    # An engine told to write by a server that was killed may not have all of it in its place yet.
    await has_told(
        engine, container, "checkpoint", within=_PLACED_SECONDS, time_limit=_CUT_OFF_SECONDS
    )
    await engine.ask(
        "POST",
        f"{path}/start",
        params={"checkpoint": name_of(container)},
        expect=_REFUSALS,
        time_limit=_WRITE_SECONDS,
    )
    seen = await engine.get(f"{path}/json") or {}
    is_back = inspection.is_running(seen)
    if not is_back:
        reason = (seen.get("State") or {}).get("Error")
        extra = {"container": container["Id"], "reason": reason}
        log.warning("memory of a sandbox lost, as it cannot be read from disk", extra=extra)
        # Its name stays taken in the engine's own parts, which then start it in no way any more.
        await engine.remove(path, force=True)
        return False
    await drop(engine, container)
    return True


async def drop(engine: Engine, container: Json, *, keep: str = "") -> None:
    """Remove what is on disk of a container's memory, but for one run."""
    for name in await _names(engine, container):
        if name == keep:
            continue
        path = f"containers/{container['Id']}/checkpoints/{name}"
        await engine.ask("DELETE", path, expect=(NOT_FOUND,))


async def _names(engine: Engine, container: Json) -> list[str]:
    if not (await engine.facts()).is_experimental:
        return []
    found = await engine.get(f"containers/{container['Id']}/checkpoints")
    return [str(one["Name"]) for one in found or []]
