"""Plugins as files: discovery on disk, manifests, and import.

A plugin that is a directory may have a manifest, `plugin.toml`, with what the server needs to know
before it imports the plugin, so that an unused plugin costs nothing.
"""

import importlib
import importlib.util
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

import agentsvc
from agentsvc.base import StartFailed

PACKAGE: Final = "agentsvc_plugins"
"""The package under which plugins are imported, whatever their files are called."""

MANIFEST: Final = "plugin.toml"

_OLD_NAMES: Final = {
    "agentsvc.backend": "agentsvc.plugin.backend",
    "agentsvc.backendparts": "agentsvc.plugin.helpers",
    "agentsvc.errors": "agentsvc.base.errors",
    "agentsvc.hookspecs": "agentsvc.plugin.hookspecs",
    "agentsvc.values": "agentsvc.base.values",
}
"""Public modules by their names before 0.2, which plugins may import for one more release."""

_SWITCH: Final = "enabled"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `plugin.toml`."""

    backends: tuple[str, ...] = ()
    """The backend types it provides; a server loads it if one of them is configured."""
    commands: tuple[str, ...] = ()
    """The subcommands of `agentsvc` it provides."""
    settings: str = ""
    """Module and struct of its settings, such as `settings:Settings`; they are the config section with
    the plugin's name. If they have a key `enabled`, a configured value of it decides whether a server
    loads the plugin."""
    environ: tuple[str, ...] = ()
    """Environment variables; a server loads it if one of them is set."""
    is_default: bool = False
    """Whether every server loads it."""


class PluginFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin in a directory, and its manifest, if it has one."""

    name: str
    path: Path
    manifest: Manifest | None = None


@cache
def bundled() -> tuple[PluginFile, ...]:
    """Return the plugins that come with the server."""
    # In the wheel they are inside the package, in a source tree next to it.
    package = Path(agentsvc.__file__).parent
    if (package / "_plugins").is_dir():
        return tuple(plugins_in(package / "_plugins"))
    is_source_tree = (package.parent / "pyproject.toml").is_file()
    beside = package.parent / "plugins"
    return tuple(plugins_in(beside)) if is_source_tree and beside.is_dir() else ()


def plugins_in(directory: Path) -> Sequence[PluginFile]:
    """Return a directory's plugins by name; raises StartFailed if unreadable or writable by others."""
    try:
        info = directory.stat()
        entries = sorted(directory.iterdir())
    except OSError as exc:
        raise StartFailed(
            f"The plugins directory {directory} cannot be read: {exc.strerror}",
            hint="correct plugins.dirs",
        ) from exc
    if info.st_mode & stat.S_IWOTH or info.st_uid not in (0, os.getuid()):
        raise StartFailed(
            f"The plugins directory {directory} can be written to by others",
            hint=f"run `chmod o-w {directory}` and make sure it is yours",
        )
    found = []
    for entry in entries:
        if entry.name.startswith(("_", ".")):
            continue
        if entry.suffix == ".py":
            found.append(PluginFile(name=entry.stem, path=entry))
        elif (entry / "__init__.py").is_file():
            manifest = _read_manifest(entry / MANIFEST)
            found.append(PluginFile(name=entry.name, path=entry / "__init__.py", manifest=manifest))
    return found


def is_needed(
    plugin: PluginFile,
    *,
    kinds: frozenset[str],
    settings: Mapping[str, Mapping[str, Any]],
    environ: Mapping[str, str],
) -> bool:
    """Return whether a server with these backends, settings and environment needs a plugin."""
    manifest = plugin.manifest
    if manifest is None:
        return True
    switch = settings.get(plugin.name, {}).get(_SWITCH)
    if switch is not None:
        return bool(switch)
    if manifest.is_default or any(environ.get(name) for name in manifest.environ):
        return True
    if not manifest.backends:
        return False
    # A backend of another author may build on a bundled one, so an unknown type loads all backends.
    return not kinds <= _known_kinds() or not kinds.isdisjoint(manifest.backends)


def default_kinds() -> frozenset[str]:
    """Return the backend types that are available without a table in the config."""
    manifests = (plugin.manifest for plugin in bundled() if plugin.manifest is not None)
    return frozenset(kind for one in manifests if one.is_default for kind in one.backends)


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the settings structs of bundled plugins by the names of their config sections."""
    return {
        plugin.name: _settings_of(plugin, plugin.manifest.settings)
        for plugin in bundled()
        if plugin.manifest is not None and plugin.manifest.settings
    }


def import_file(name: str, file: Path) -> ModuleType:
    """Import a file as a submodule of `PACKAGE`, and return it; raises whatever it raises."""
    # The module is in sys.modules before it runs, so that annotations can be resolved, and under
    # a name below PACKAGE, so that plugins/docker.py does not shadow a library called docker.
    if PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = []
        sys.modules[PACKAGE] = package
    full_name = f"{PACKAGE}.{name}"
    spec = importlib.util.spec_from_file_location(full_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[full_name]
        raise
    return module


def keep_old_names() -> None:
    """Register the former names of public modules, so that plugins can import them."""
    for old, new in _OLD_NAMES.items():
        sys.modules.setdefault(old, importlib.import_module(new))


def _known_kinds() -> frozenset[str]:
    offered = (plugin.manifest.backends for plugin in bundled() if plugin.manifest is not None)
    return frozenset().union(*offered)


def _settings_of(plugin: PluginFile, place: str) -> type[msgspec.Struct]:
    """Return the settings struct of a plugin without importing its other modules."""
    module_name, _, struct = place.partition(":")
    name = f"{plugin.name}.{module_name}"
    module = sys.modules.get(f"{PACKAGE}.{name}")
    if module is None:
        module = import_file(name, plugin.path.with_name(f"{module_name}.py"))
    found: type[msgspec.Struct] = getattr(module, struct)
    return found


def _read_manifest(file: Path) -> Manifest | None:
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, msgspec.DecodeError) as exc:
        raise StartFailed(
            f"The plugin manifest {file} is invalid: {exc}",
            hint=f"its keys are: {', '.join(Manifest.__struct_fields__)}",
        ) from exc
