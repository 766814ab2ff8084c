"""Handles of sandboxes, and finding what there is of them on this machine. All functions block."""

from collections.abc import Container
from pathlib import Path
from typing import Final

from agentsvc.base import now
from agentsvc.plugin import Found, Handle, check_handle

from . import launch, sandbox_directory
from .inspection import Inspection, users_of
from .sandbox_directory import Record, SandboxDirectory
from .tree import Tree, marks, may_own, snapshot

HANDLE_VERSION: Final = 1


def to_handle(folder: SandboxDirectory, record: Record | None) -> Handle:
    """Return the handle of a sandbox that has a directory."""
    state = folder.read_state()
    return Handle(
        sandbox_id=folder.sandbox_id,
        version=HANDLE_VERSION,
        data={
            "temp": record.temp if record else "",
            "cgroup": state.cgroup if state else "",
        },
    )


def folder_of(handle: Handle, state_dir: Path) -> SandboxDirectory:
    """Return where the files of a sandbox are; raises HandleTooNew and OrderRejected."""
    check_handle(handle, HANDLE_VERSION, "process backend")
    return sandbox_directory.require_folder(state_dir, handle.sandbox_id)


def tree_of(
    inspection: Inspection, handle: Handle, mark: str, groups: Path | None, numbers: Container[int]
) -> Tree:
    """Return the processes of a sandbox, whose control group is in that of all unless it is known.

    `numbers` are the users that sandboxes can be.
    """
    users = users_of(inspection.record, numbers)
    if inspection.state is not None:
        group = Path(inspection.state.cgroup) if inspection.state.cgroup else None
        return Tree(mark=mark, root=inspection.state.shim, group=group, users=users)
    known = Path(str(handle.data.get("cgroup", "")))
    # The handle may come from a restored database: no other group is killed and removed.
    if known.is_absolute() and known.name == launch.group_name(mark):
        return Tree(mark=mark, group=known, users=users)
    return Tree(mark=mark, group=launch.group_path(groups, mark), users=users)


def temp_of(handle: Handle) -> str:
    """Return the temporary directory that a handle names, unless it can be none of ours.

    The handle may come from a restored database, and what it names is removed with all its files.
    """
    path = Path(str(handle.data.get("temp", "")))
    return str(path) if sandbox_directory.is_temp_name(path) else ""


def find_all(
    state_dir: Path, temp_root: Path, instance_id: str, numbers: Container[int]
) -> list[Found]:
    """Return what has a directory, a temporary directory or a process of an instance.

    `numbers` are the users that sandboxes can be.
    """
    found = {
        folder.sandbox_id: Found(handle=to_handle(folder, folder.read_record()), created_at=made)
        for folder, made in sandbox_directory.list_folders(state_dir, instance_id)
    }
    # Anything below is left of a sandbox whose directory is gone.
    left = [(mark, {"temp": str(path)}) for path, mark in sandbox_directory.list_temps(temp_root)]
    left += [(mark, {}) for pid in snapshot() for mark in marks(pid) if may_own(pid, numbers)]
    for mark, data in left:
        if (sandbox_id := _own(mark, instance_id)) and sandbox_id not in found:
            handle = Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION, data=data)
            found[sandbox_id] = Found(handle=handle, created_at=now())
    return list(found.values())


def _own(mark: str, instance_id: str) -> str:
    owner, _, sandbox_id = mark.rpartition("/")
    return sandbox_id if owner == instance_id else ""
