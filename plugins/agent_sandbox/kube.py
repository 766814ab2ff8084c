"""The modules of the kubernetes plugin that this plugin uses; imported even if that is disabled."""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from agentsvc.plugin import PACKAGE, bundled, import_file

if TYPE_CHECKING:
    from kubernetes import (
        api,
        backend,
        commands,
        inspection,
        making,
        names,
        objects,
        plan,
        settings,
    )

    # isort: split
    from kubernetes import tunnels, usage, watch
else:
    if f"{PACKAGE}.kubernetes" not in sys.modules:
        [_file] = [file for file in bundled() if file.name == "kubernetes"]
        import_file(_file.name, _file.path)

    def __getattr__(name: str) -> ModuleType:
        """Return a module of the kubernetes plugin."""
        if name not in __all__:
            raise AttributeError(name)
        return importlib.import_module(f"..kubernetes.{name}", __package__)


__all__ = [
    "api",
    "backend",
    "commands",
    "inspection",
    "making",
    "names",
    "objects",
    "plan",
    "settings",
]
__all__ += ["tunnels", "usage", "watch"]
