"""The parts of first-party plugins, for tests of them."""

import importlib
from types import ModuleType

from agentsvc.plugins import PluginHost

# It is the loader that gives plugins their names; after this they can be imported by these.
PluginHost.load()


def part(name: str) -> ModuleType:
    """Return a module of a plugin, such as `docker.plan`."""
    return importlib.import_module(f"agentsvc_plugins.{name}")
