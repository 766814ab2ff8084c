"""Checkpoints of the files of sandboxes, kept in their volumes by a program that runs inside.

They are where only a group of their own gets, which the agent is not in. A container that goes back to
one does that itself when it starts, before the agent server runs.
"""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

import agentsvc.plugin
from agentsvc.base import BackendUnavailable, Conflict, OrderRejected, new_id
from agentsvc.plugin import Checkpoint, LongTasks, finish

from .checkpoints_program import REFUSED
from .commands import execute
from .engine import Engine
from .kept_files import paths_of
from .plan import PRIVATE, PYTHONS, Json, checkpoint_archive
from .streams import read_file

_GROUP: Final = 61184
"""The group by which checkpoints are reached; below 65,536, as many as there are without root."""
_MODULES: Final = ("copying", "file_checkpoints", "removal")
_STORE: Final = f"{PRIVATE}/checkpoints"
_TAKE_SECONDS: Final = 1800.0
_OUTPUT_BYTES: Final = 2000
_RUN: Final = (
    f"for python in {PYTHONS}; do "
    f'if [ -x $python ]; then exec $python -I -S {PRIVATE}/checkpointing "$@"; fi; done; '
    f"echo 'Its image has no Python 3, by which files are copied' >&2; exit {REFUSED}"
)


class Checkpoints:
    """The checkpoints of the sandboxes of one installation."""

    def __init__(self) -> None:
        self._taking = LongTasks()

    async def close(self) -> None:
        """End what is being copied; what there is of it goes with the next checkpoint."""
        await self._taking.close()

    async def take(
        self,
        engine: Engine,
        container: Json,
        sandbox_id: str,
        checkpoint_id: str,
        *,
        keep: int,
        most_bytes: int,
    ) -> None:
        """Keep a checkpoint of a container that runs; see `RuntimeBackend.checkpoint`."""

        async def take() -> int:
            paths = await paths_of(engine, container)
            await finish(_prepare(engine, container, "", may_write=False))
            args = [checkpoint_id, str(keep), str(most_bytes), *paths]
            await _run(engine, container, ["take", *args])
            return 0

        await self._taking.go_on(sandbox_id, take)

    async def abandon(self, sandbox_id: str) -> None:
        """End what is being copied in a sandbox that is to go."""
        await self._taking.abandon(sandbox_id)


async def listed(engine: Engine, container: Json) -> list[Checkpoint]:
    """Return the checkpoints of a container, the oldest first."""
    text = await read_file(engine, container["Id"], f"{_STORE}/index")
    try:
        known = msgspec.json.decode(text or "{}", type=dict[str, int])
        found = [
            Checkpoint(id=one, created_at=datetime.fromtimestamp(begun / 1e9, UTC))
            for one, begun in known.items()
        ]
    except (msgspec.MsgspecError, ValueError, OverflowError) as exc:
        raise BackendUnavailable("The sandbox's list of checkpoints is damaged") from exc
    return sorted(found, key=lambda one: one.created_at)


async def roll_back(engine: Engine, container: Json, checkpoint_id: str) -> None:
    """Have a container that does not run start with the files of a checkpoint."""
    if checkpoint_id not in {one.id for one in await listed(engine, container)}:
        raise OrderRejected("There is no such checkpoint")
    note = f"{new_id()} {checkpoint_id}"
    await finish(_prepare(engine, container, note, may_write=True))


async def _prepare(engine: Engine, container: Json, rollback: str, *, may_write: bool) -> None:
    """Bring the programs in, and what is to be done at the next start."""
    archive = checkpoint_archive(programs(), rollback, _GROUP, may_write=may_write)
    to = f"containers/{container['Id']}/archive"
    await engine.ask("PUT", to, params={"path": PRIVATE}, data=archive)


async def _run(engine: Engine, container: Json, args: list[str]) -> None:
    user = str((container.get("Config") or {}).get("User") or "0").partition(":")[0]
    ended = await execute(
        engine,
        container["Id"],
        ["/bin/sh", "-c", _RUN, "checkpoints", *args],
        env={},
        time_limit=_TAKE_SECONDS,
        max_output=_OUTPUT_BYTES,
        user=f"{user}:{_GROUP}",
    )
    said = ended.stderr.decode(errors="replace").strip()
    if ended.exit_code == REFUSED:
        raise OrderRejected(said)
    if ended.timed_out:
        raise Conflict(f"The files were not copied in {_TAKE_SECONDS:.0f} s")
    if ended.exit_code != 0:
        raise BackendUnavailable("The sandbox could not copy its files", detail=said[-500:])


@cache
def programs() -> dict[str, bytes]:
    """Return the files of the program and of the modules it imports, by their paths."""
    package = Path(agentsvc.plugin.__file__).parent
    modules = {
        f"agentsvc/plugin/{name}.py": (package / f"{name}.py").read_bytes() for name in _MODULES
    }
    imports = "".join(f"from agentsvc.plugin.{name} import *\n" for name in _MODULES)
    own = Path(__file__).parent
    return {
        "fence.py": (own / "fence_program.py").read_bytes(),
        "checkpointing/__main__.py": (own / "checkpoints_program.py").read_bytes(),
        "checkpointing/agentsvc/__init__.py": b"",
        "checkpointing/agentsvc/plugin/__init__.py": imports.encode(),
        **{f"checkpointing/{path}": content for path, content in modules.items()},
    }
