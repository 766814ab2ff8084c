"""What the agent server of a process sandbox imports first: it keeps its files in the sandbox.

Where bubblewrap holds the sandbox, a browser inside makes no further sandbox of its own: it would
need namespaces, which nothing inside may make. The agent server and its browser package put some straight into /tmp, whatever TMPDIR says; there
a sandbox that is deleted would leave them. Imported by `--import-modules`, with the standard
library alone; where there is no such package, or it has another shape, nothing is changed.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_PROFILES: Final = "browser_use.browser.profile"
_DOWNLOADS: Final = ("downloads_path", "downloads_dir", "save_downloads_path")


def settle() -> None:
    """Say where worktrees go, and wait for the browser package, which may never be imported."""
    os.environ.setdefault("OH_CONVERSATION_WORKTREE_ROOT", str(Path.home() / "worktrees"))
    sys.meta_path.insert(0, _ProfileFinder())


class _ProfileFinder(MetaPathFinder):
    """Finds the module of the browser's profiles where it is, and has it changed once loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PROFILES:
            return None
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and found.loader is not None:
            found.loader = _ProfileLoader(found.loader)
        return found


class _ProfileLoader(Loader):
    """Loads the module, and gives each profile that has no directory for downloads a new one."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        profile: Any = getattr(module, "BrowserProfile", None)
        if profile is not None:
            profile.__init__ = _settled(profile.__init__)


def _settled(init: Callable[..., None]) -> Callable[..., None]:
    def settled(self: object, **fields: Any) -> None:
        if not any(fields.get(name) for name in _DOWNLOADS):
            fields["downloads_path"] = tempfile.mkdtemp(prefix="downloads-")
        if _is_filtered():
            fields["chromium_sandbox"] = False
        init(self, **fields)

    return settled


def _is_filtered() -> bool:
    """Say whether a filter of system calls is on this process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    return "\nSeccomp:\t2\n" in status


settle()
