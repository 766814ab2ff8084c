"""Saves processes and memory of sandboxes to the engine's disk, restores and removes them.

These are Docker's checkpoints of gVisor containers, in the container's own directory: only root may
read them, and they are deleted with the container. Each is named after a run of the container, so
that none is restored for another run, even if a removal was interrupted.
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
"""How long saving or restoring the memory of a sandbox may take."""
_CUT_OFF_SECONDS: Final = 120.0
"""After this time, a checkpoint that an earlier request started counts as interrupted."""
_END_SECONDS: Final = 0.1
_PLACED_SECONDS: Final = 60.0
"""How long after the container's end its checkpoint may still be moved into place."""


def why_not(facts: EngineInfo, runtime: str) -> str:
    """Return why an engine cannot save containers of a runtime, or an empty string."""
    runtime = runtime or facts.default_runtime
    if facts.is_podman:
        return "Podman needs CRIU for this, which is not supported here"
    if not facts.is_experimental:
        return "the engine does not support checkpoints: set `experimental` in its daemon.json"
    if isolation_of(runtime) is not Isolation.GVISOR:
        return "only gVisor containers can be saved to disk: set `runtime` to runsc"
    if runtime not in facts.saving_runtimes:
        return (
            f"the runtime `{runtime}` needs `--net-disconnect-ok`, and not `--network=host`, among its"
            " `runtimeArgs` in the engine's daemon.json: otherwise open connections break saved containers"
        )
    return ""


def name_of(container: Json) -> str:
    """Return the name of the checkpoint for a container's last run."""
    began = str((container.get("State") or {}).get("StartedAt"))
    return "run" + re.sub(r"\D", "", began)


async def has(engine: Engine, container: Json) -> bool:
    """Return whether the last run of a container has a checkpoint."""
    return name_of(container) in await _names(engine, container)


def is_stuck(exc: AgentsvcError) -> bool:
    """Return whether an error means that a container can never start: its checkpoint broke off."""
    return "id already in use" in exc.message


async def until_written(engine: Engine, container: Json) -> None:
    """Wait until a checkpoint is written; remove it if the engine was interrupted."""
    path = f"containers/{container['Id']}/json"
    for _ in range(int(_CUT_OFF_SECONDS / _END_SECONDS)):
        if not inspection.is_running(await engine.get(path) or {}):
            return
        await asyncio.sleep(_END_SECONDS)
    await drop(engine, container)


async def write(engine: Engine, container: Json) -> None:
    """Save a frozen container and end it; if that fails, it is frozen again or has ended.

    It runs for a moment, because an engine cannot save a frozen container.
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
        "sandbox not saved to disk, see the engine's log",
        extra={"container": container["Id"], "memory": "lost" if has_ended else "kept"},
    )
    if not has_ended:
        await engine.ask("POST", f"{path}/pause", expect=(CONFLICT,))


async def bring_back(engine: Engine, container: Json) -> bool:
    """Restore a container from its checkpoint; return whether it runs, otherwise remove it.

    Its volumes are kept.
    """
    path = f"containers/{container['Id']}"
    # If the server was killed after its request, the engine may still be moving files into place.
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
        log.warning("sandbox memory lost: the checkpoint cannot be restored", extra=extra)
        # Its name stays in use in the engine, which could never start the container again.
        await engine.remove(path, force=True)
        return False
    await drop(engine, container)
    return True


async def drop(engine: Engine, container: Json, *, keep: str = "") -> None:
    """Remove a container's checkpoints, except the one named `keep`."""
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
