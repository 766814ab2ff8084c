"""Checkpoints of the files of sandboxes, stored in their volumes by a program that runs inside.

Only a group that the agent is not in may access them. A container restores a checkpoint itself when
it starts, before the agent server runs.
"""

from functools import cache
from pathlib import Path
from typing import Final

from agentsvc.base import OrderRejected, new_id
from agentsvc.plugin import (
    CHECKPOINT_OUTPUT_BYTES,
    CHECKPOINT_SECONDS,
    Checkpoint,
    check_copied,
    checkpoints_program,
    finish,
    read_checkpoints,
)

from .commands import execute
from .engine import Engine
from .plan import PRIVATE, PYTHONS, Json, checkpoint_archive
from .streams import read_file
from .transfer import paths_of

_GROUP: Final = 61184
"""The group that may access checkpoints; below 65,536, the number of ids without root."""
_STORE: Final = f"{PRIVATE}/checkpoints"
_RUN: Final = (
    f"for python in {PYTHONS}; do "
    f'if [ -x $python ]; then exec $python -I -S {PRIVATE}/checkpointing "$@"; fi; done; '
    f"echo 'The sandbox image has no Python 3, which is needed to copy files' >&2; exit {checkpoints_program.REFUSED}"
)


async def take(
    engine: Engine, container: Json, checkpoint_id: str, *, keep: int, max_bytes: int
) -> None:
    """Create a checkpoint of a running container; the next one removes an aborted copy."""
    paths = await paths_of(engine, container)
    await finish(_prepare(engine, container, "", may_write=False))
    args = [checkpoint_id, str(keep), str(max_bytes), *paths]
    await _run(engine, container, ["take", _STORE, *args])


async def listed(engine: Engine, container: Json) -> list[Checkpoint]:
    """Return the checkpoints of a container, the oldest first."""
    return read_checkpoints(
        await read_file(engine, container["Id"], f"{_STORE}/{checkpoints_program.INDEX}")
    )


async def roll_back(engine: Engine, container: Json, checkpoint_id: str) -> None:
    """Record the checkpoint that a stopped container restores when it starts."""
    if checkpoint_id not in {one.id for one in await listed(engine, container)}:
        raise OrderRejected("There is no such checkpoint")
    note = f"{new_id()} {checkpoint_id}"
    await finish(_prepare(engine, container, note, may_write=True))


async def _prepare(engine: Engine, container: Json, rollback: str, *, may_write: bool) -> None:
    """Upload the programs, and the checkpoint to restore at the next start, if any."""
    archive = checkpoint_archive(programs(), rollback, _GROUP, may_write=may_write)
    await engine.put(container["Id"], PRIVATE, archive)


async def _run(engine: Engine, container: Json, args: list[str]) -> None:
    user = str((container.get("Config") or {}).get("User") or "0").partition(":")[0]
    ended = await execute(
        engine,
        container["Id"],
        ["/bin/sh", "-c", _RUN, "checkpoints", *args],
        env={},
        time_limit=CHECKPOINT_SECONDS,
        max_output=CHECKPOINT_OUTPUT_BYTES,
        user=f"{user}:{_GROUP}",
    )
    check_copied(ended)


@cache
def programs() -> dict[str, bytes]:
    """Return the files of the programs by path."""
    fence = Path(__file__).with_name("fence_program.py").read_bytes()
    checkpoints = checkpoints_program.programs()
    return {
        "fence.py": fence,
        **{f"checkpointing/{path}": content for path, content in checkpoints.items()},
    }
