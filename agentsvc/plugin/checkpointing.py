"""Helpers for backends whose sandboxes run `checkpoints_program` to keep their own checkpoints."""

import posixpath
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from agentsvc.base import BackendUnavailable, Conflict, OrderRejected
from agentsvc.plugin.checkpoints_program import REFUSED
from agentsvc.plugin.helpers import is_below
from agentsvc.plugin.values import Checkpoint, ExecResult

CHECKPOINT_SECONDS: Final = 1800.0
"""The time limit of the program."""
CHECKPOINT_OUTPUT_BYTES: Final = 16_384
"""The limit of the program's output: an index, or the error that prevented the copy."""

_STATE: Final = ("OH_CONVERSATIONS_PATH", "OH_BASH_EVENTS_DIR")


def check_copied(ended: ExecResult) -> None:
    """Raise OrderRejected, Conflict or BackendUnavailable unless the program succeeded."""
    output = ended.stderr.decode(errors="replace").strip()
    if ended.exit_code == REFUSED:
        raise OrderRejected(output)
    if ended.timed_out:
        raise Conflict(f"The files were not copied in {CHECKPOINT_SECONDS:.0f} s")
    if ended.exit_code != 0:
        raise BackendUnavailable("The sandbox could not copy its files", detail=output[-500:])


def read_checkpoints(index: str) -> list[Checkpoint]:
    """Parse the program's index, oldest first; raises BackendUnavailable if it is malformed."""
    try:
        known = msgspec.json.decode(index or "{}", type=dict[str, int])
        found = [
            Checkpoint(id=one, created_at=datetime.fromtimestamp(begun / 1e9, UTC))
            for one, begun in known.items()
        ]
    except (msgspec.MsgspecError, ValueError, OverflowError) as exc:
        raise BackendUnavailable("The sandbox's list of checkpoints is damaged") from exc
    return sorted(found, key=lambda one: one.created_at)


def kept_directories(
    env: Mapping[str, str], work: str, home: str, *, may_have_state: bool = False
) -> list[str]:
    """Return the directories with a sandbox's files, without those below another one.

    Raises OrderRejected if one contains the agent server's state, unless `may_have_state`.
    """
    paths = sorted({one for one in (work, posixpath.normpath(home)) if one not in ("", "/", ".")})
    for path in paths:
        if not may_have_state and any(env.get(key) and is_below(env[key], path) for key in _STATE):
            raise OrderRejected(
                f"The agent server's own files are in {path}, which would be kept:"
                " set the spec's `working_dir` to a directory that does not contain them"
            )
    return [one for one in paths if not any(one != top and is_below(one, top) for top in paths)]
