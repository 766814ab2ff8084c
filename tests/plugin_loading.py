"""The plugins of servers in tests, and the parts of first-party plugins, for tests of them."""

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import Final

from agentsvc.config.schema import Config
from agentsvc.domain.orders import Provider
from agentsvc.extension.server import git_hosts_of, make_extensions
from agentsvc.git.hosting import Hosting
from agentsvc.sandboxes.plugin_loader import PluginHost, installed_points

_POINTS: Final = tuple(installed_points())

# It is the loader that gives plugins their names; after this they can be imported by these.
PluginHost.load(points=_POINTS)


def load_plugins(without: Sequence[str] = (), /, **added: object) -> PluginHost:
    """Return what a server loads, with plugins of the test in place of local processes."""
    host = PluginHost.load(disable=["process", *without], points=_POINTS)
    for name, plugin in added.items():
        host.add(name, plugin, version="", origin="tests")
    return host


def git_hosts() -> dict[Provider, type[Hosting]]:
    """Return the git hosting services that plugins know."""
    return git_hosts_of(make_extensions(PluginHost.load(points=_POINTS), Config()))


def part(name: str) -> ModuleType:
    """Return a module of a plugin, such as `docker.plan`."""
    return importlib.import_module(f"agentsvc_plugins.{name}")
