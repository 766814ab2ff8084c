"""The tests, which import parts of `plugins/process` by the plugin's own name."""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_PLUGIN = "process"


class _ByOwnName(MetaPathFinder, Loader):
    """Finds `process.X` as `agentsvc_plugins.process.X`, the same module under the loader's name."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_part = fullname.partition(".")[0] == _PLUGIN
        return spec_from_loader(fullname, self) if is_part else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        name = f"agentsvc_plugins.{spec.name}"
        if spec.name == _PLUGIN and name not in sys.modules:
            from agentsvc.plugin import bundled, import_file  # noqa: PLC0415  # what runs in sandboxes needs none of it

            [file] = [plugin.path for plugin in bundled() if plugin.name == _PLUGIN]
            import_file(_PLUGIN, file)
        module = importlib.import_module(name)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import has just written its own here, and relative imports later ask for the first.
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _ByOwnName())
