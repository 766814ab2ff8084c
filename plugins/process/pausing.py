"""Pauses, stops and resumes the processes of a sandbox, and records the progress beside its files.

All functions but `push_out` block briefly; call them from a thread.
"""

from functools import partial

import msgspec

from agentsvc.base import BackendUnavailable

from . import reclaiming
from .sandbox_directory import Pause, SandboxDirectory
from .threads import reach
from .tree import Tree


def pause(folder: SandboxDirectory, tree: Tree, time_limit: float) -> None:
    """Freeze or stop every process."""
    if folder.read_pause() is None:
        folder.write_pause(Pause(is_done=False, kept=tuple(tree.stopped())))
    finish_pause(folder, tree, time_limit)


def finish_pause(folder: SandboxDirectory, tree: Tree, time_limit: float) -> None:
    """Complete a pause that was begun."""
    noted = folder.read_pause() or Pause(is_done=False)
    try:
        tree.stop(time_limit)
    except TimeoutError as exc:
        raise BackendUnavailable("A process of the sandbox does not stop") from exc
    folder.write_pause(msgspec.structs.replace(noted, is_done=True))


def finish_stop(folder: SandboxDirectory, tree: Tree) -> None:
    """Complete a stop that was begun: kill the remaining processes."""
    if not tree.kill():
        folder.write_pause(Pause(is_done=True, ends=True))


def resume(folder: SandboxDirectory, tree: Tree) -> None:
    """Resume every process that ran before the pause."""
    noted = folder.read_pause()
    if noted is None:
        return
    folder.write_pause(msgspec.structs.replace(noted, is_done=False, memory=None))
    if tree.group is not None:
        # A server that was killed while it pushed memory out may have left swap permitted.
        reclaiming.forbid_swap(tree.group)
    tree.resume(noted.kept)
    folder.clear_pause()


async def push_out(tree: Tree) -> reclaiming.Memory:
    """Push the memory of every process out to swap; return where it is afterwards."""
    group = tree.group
    if group is not None and await reach(lambda: reclaiming.counts_memory(group)):
        while await reach(lambda: reclaiming.push_out_some(group)):
            pass
        return await reach(lambda: reclaiming.memory_of_group(group))
    members = await reach(tree.members)
    for process in members:
        await reach(partial(reclaiming.push_out, process.identity))
    return await reach(lambda: reclaiming.memory_of(one.pid for one in members))


def record_memory(folder: SandboxDirectory, memory: reclaiming.Memory) -> None:
    """Record where the memory of a paused sandbox is."""
    noted = folder.read_pause()
    if noted is not None:
        folder.write_pause(msgspec.structs.replace(noted, memory=memory))
