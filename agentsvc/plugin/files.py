"""Plugins as files: where they lie, what their manifests say, and how they are imported.

A plugin that is a directory may have a manifest, `plugin.toml`: it tells the server what it must know
before it imports any of the plugin, so that one which is not needed costs nothing.
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
"""The package that plugins are imported into, whatever their files are called."""

MANIFEST: Final = "plugin.toml"

_OLD_NAMES: Final = {
    "agentsvc.backend": "agentsvc.plugin.backend",
    "agentsvc.backendparts": "agentsvc.plugin.helpers",
    "agentsvc.errors": "agentsvc.base.errors",
    "agentsvc.hookspecs": "agentsvc.plugin.hookspecs",
    "agentsvc.values": "agentsvc.base.values",
}
"""Public modules by their names before 0.2, which plugins may use for one more release."""

_SWITCH: Final = "enabled"


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plugin says of itself before it is imported."""

    backends: tuple[str, ...] = ()
    """The kinds of backends it offers; a server loads it where one of them is configured."""
    commands: tuple[str, ...] = ()
    """The subcommands of `agentsvc` it offers."""
    settings: str = ""
    """Module and struct of its settings, such as `settings:Settings`; they are the section of the
    config that is called like the plugin. With a key `enabled` among them, that decides whether a
    server loads it."""
    environ: tuple[str, ...] = ()
    """Variables of the environment; a server loads it where one of them is set."""
    is_default: bool = False
    """Whether every server loads it."""


class PluginFile(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin that lies in a directory, and what its manifest says, if it has one."""

    name: str
    path: Path
    manifest: Manifest | None = None


@cache
def bundled() -> tuple[PluginFile, ...]:
    """Return the plugins that come with the server."""
    # In the wheel they lie inside the package, in a source tree beside it.
    package = Path(agentsvc.__file__).parent
    if (package / "_plugins").is_dir():
        return tuple(plugins_in(package / "_plugins"))
    is_source_tree = (package.parent / "pyproject.toml").is_file()
    beside = package.parent / "plugins"
    return tuple(plugins_in(beside)) if is_source_tree and beside.is_dir() else ()


def plugins_in(directory: Path) -> Sequence[PluginFile]:
    """Return the plugins of a directory by name; raises StartFailed where it cannot be trusted."""
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
    """Whether a server needs a plugin: by the backends, the settings and the environment it has."""
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
    # A kind of somebody else's may build on one of ours; one that nobody offers is told them all.
    return not kinds <= _known_kinds() or not kinds.isdisjoint(manifest.backends)


def default_kinds() -> frozenset[str]:
    """Return the kinds of backends that a server has without a table of the config."""
    manifests = (plugin.manifest for plugin in bundled() if plugin.manifest is not None)
    return frozenset(kind for one in manifests if one.is_default for kind in one.backends)


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the structs of the config sections that bundled plugins have, by their names."""
    return {
        plugin.name: _settings_of(plugin, plugin.manifest.settings)
        for plugin in bundled()
        if plugin.manifest is not None and plugin.manifest.settings
    }


def import_file(name: str, file: Path) -> ModuleType:
    """Import a file as a module of ours, and return it; raises whatever it raises."""
    # The module is in sys.modules before it runs, so that annotations can be resolved, and under
    # a name of ours, so that plugins/docker.py does not shadow a library called docker.
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
    """Let plugins import the public modules by their former names."""
    for old, new in _OLD_NAMES.items():
        sys.modules.setdefault(old, importlib.import_module(new))


def _known_kinds() -> frozenset[str]:
    offered = (plugin.manifest.backends for plugin in bundled() if plugin.manifest is not None)
    return frozenset().union(*offered)


def _settings_of(plugin: PluginFile, place: str) -> type[msgspec.Struct]:
    """Return the settings of a plugin, whose other modules are not imported."""
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
            f"The manifest of a plugin does not fit: {file}: {exc}",
            hint=f"its keys are: {', '.join(Manifest.__struct_fields__)}",
        ) from exc
