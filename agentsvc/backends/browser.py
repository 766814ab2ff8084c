"""Settles the agent server's browser package in a sandbox, once it is imported.

Where bubblewrap holds the sandbox, a browser inside makes no further sandbox of its own: it would
need namespaces, which nothing inside may make. What is downloaded stays in the sandbox. The package
may be loaded before a fork, as long as this is imported before it. Standard library alone; where
there is no such package, or it has another shape, nothing is changed.
"""

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
_FOUND_OUT: Final = (
    ("browser_use.config", "is_running_in_docker"),
    (_PROFILES, "get_display_size"),
)
"""Modules, and their functions that keep what they have found out of where they run."""


def settle_here() -> None:
    """Have what was loaded before a fork be right for this process."""
    for name, function in _FOUND_OUT:
        forget = getattr(getattr(sys.modules.get(name), function, None), "cache_clear", None)
        if forget is not None:
            forget()
    sessions = sys.modules.get("browser_use.browser.session")
    profile = getattr(sessions, "DEFAULT_BROWSER_PROFILE", None)
    if profile is not None:
        vars(profile).update(_own())


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
        own = _own() if not any(fields.get(name) for name in _DOWNLOADS) else _unconfined()
        init(self, **{**fields, **own})

    return settled


def _own() -> dict[str, Any]:
    return {"downloads_path": Path(tempfile.mkdtemp(prefix="downloads-")), **_unconfined()}


def _unconfined() -> dict[str, Any]:
    return {"chromium_sandbox": False} if _is_filtered() else {}


def _is_filtered() -> bool:
    """Say whether a filter of system calls is on this process."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    return "\nSeccomp:\t2\n" in status


sys.meta_path.insert(0, _ProfileFinder())
