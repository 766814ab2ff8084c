"""The subcommands of plugins, loaded when one of them is called or all are listed."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from agentsvc.base import StartFailed
from agentsvc.config import Config, load
from agentsvc.plugin import PluginFile, bundled, sections
from agentsvc.sandboxes import PluginHost, installed_points


def names() -> list[str]:
    """Return the names of all subcommands of plugins."""
    config = _config()
    ours = [name for file in _enabled(config) for name in _commands_in(file)]
    return [*ours, *(command.name or "" for command in _external_commands(config))]


def find(name: str) -> click.Command | None:
    """Return a plugin's subcommand, or None; raises StartFailed for a broken plugin."""
    config = _config()
    for file in _enabled(config):
        if name in _commands_in(file):
            host = PluginHost()
            host.add_file(file)
            return _first(name, (command for _, command in host.commands()))
    return _first(name, _external_commands(config))


def _first(name: str, commands: Iterable[click.Command]) -> click.Command | None:
    return next((command for command in commands if command.name == name), None)


def _config() -> Config:
    """Return the configuration, or the defaults if it is invalid; the subcommand reports that."""
    try:
        return load(None, os.environ, {}, sections=sections()).config
    except StartFailed:
        return Config()


def _enabled(config: Config) -> Iterator[PluginFile]:
    return (file for file in bundled() if file.name not in config.plugins.disable)


def _commands_in(file: PluginFile) -> tuple[str, ...]:
    return file.manifest.commands if file.manifest is not None else ()


def _external_commands(config: Config) -> Iterator[click.Command]:
    """Yield the subcommands of plugins that are not bundled with the server."""
    points = tuple(installed_points())
    if not points and not config.plugins.dirs:
        return
    ours = {file.name for file in bundled()}
    host = PluginHost.load(
        dirs=[Path(folder) for folder in config.plugins.dirs],
        disable=ours | set(config.plugins.disable),
        points=points,
    )
    for _, command in host.commands():
        yield command
