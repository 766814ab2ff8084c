"""Handles of sandboxes, and the scan for sandboxes on this machine. All functions block."""

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
    """Return the directory of a sandbox; raises HandleTooNew and OrderRejected."""
    check_handle(handle, HANDLE_VERSION, "process backend")
    return sandbox_directory.require_folder(state_dir, handle.sandbox_id)


def tree_of(
    inspection: Inspection, handle: Handle, mark: str, groups: Path | None, uids: Container[int]
) -> Tree:
    """Return the process tree of a sandbox; without a known control group, use the one in `groups`.

    `uids` are the user ids that sandboxes may get.
    """
    users = users_of(inspection.record, uids)
    if inspection.state is not None:
        group = Path(inspection.state.cgroup) if inspection.state.cgroup else None
        return Tree(mark=mark, root=inspection.state.shim, group=group, users=users)
    known = Path(str(handle.data.get("cgroup", "")))
    # The handle may come from a restored database: kill and remove no foreign group.
    if known.is_absolute() and known.name == launch.group_name(mark):
        return Tree(mark=mark, group=known, users=users)
    return Tree(mark=mark, group=launch.group_path(groups, mark), users=users)


def temp_of(handle: Handle) -> str:
    """Return the temporary directory in a handle, or "" if its name is not one of ours.

    The handle may come from a restored database, and the directory is removed recursively.
    """
    path = Path(str(handle.data.get("temp", "")))
    return str(path) if sandbox_directory.is_temp_name(path) else ""


def find_all(
    state_dir: Path, temp_root: Path, instance_id: str, uids: Container[int]
) -> list[Found]:
    """Return all sandboxes of an instance with a directory, temporary directory or process.

    `uids` are the user ids that sandboxes may get.
    """
    found = {
        folder.sandbox_id: Found(handle=to_handle(folder, folder.read_record()), created_at=made)
        for folder, made in sandbox_directory.list_folders(state_dir, instance_id)
    }
    # The rest are leftovers of sandboxes whose directory is gone.
    left = [(mark, {"temp": str(path)}) for path, mark in sandbox_directory.list_temps(temp_root)]
    left += [(mark, {}) for pid in snapshot() for mark in marks(pid) if may_own(pid, uids)]
    for mark, data in left:
        if (sandbox_id := _own_id(mark, instance_id)) and sandbox_id not in found:
            handle = Handle(sandbox_id=sandbox_id, version=HANDLE_VERSION, data=data)
            found[sandbox_id] = Found(handle=handle, created_at=now())
    return list(found.values())


def _own_id(mark: str, instance_id: str) -> str:
    owner, _, sandbox_id = mark.rpartition("/")
    return sandbox_id if owner == instance_id else ""
