"""`agentsvc config`: shows the configuration in force, and the default one."""

import re
from collections.abc import Iterator
from typing import Any, Final

import click
import msgspec

from agentsvc.base import MASK
from agentsvc.cli.options import ConfigOptions, example, where_options
from agentsvc.config import Loaded, render_default, settings_of, to_toml
from agentsvc.plugin import sections

_SECRET: Final = re.compile(r"[._](key|password|secret|token)s?$")

_FREE: Final = ("backends.", "extensions.")


@click.group("config", epilog=example("agentsvc config show"))
def command() -> None:
    """Show the configuration in force, or the default one."""


@command.command(epilog=example("agentsvc config show | grep sandboxes"))
@where_options
def show(where: ConfigOptions) -> None:
    """Print every key with its value and where that is from.

    Keys of backends and plugins that are named like a secret show as stars.
    """
    loaded = where.load()
    click.echo(f"config file: {loaded.path or 'none'}", err=True)
    for line in lines_of(loaded):
        click.echo(line)


@command.command(epilog=example("agentsvc config default > ~/.config/agentsvc/config.toml"))
def default() -> None:
    """Print the default config file, with a sentence on every key."""
    click.echo(render_default(sections()), nl=False)


def lines_of(loaded: Loaded) -> Iterator[str]:
    """Yield one line of TOML for each key, with its origin as the comment."""
    tree = msgspec.to_builtins(loaded.config)
    for section, kind in loaded.sections.items():
        tree[section] = msgspec.to_builtins(settings_of(loaded.config, section, kind))
    for name, origin in loaded.origins.items():
        value = _at(tree, name.split(".", 2))
        is_secret = name.startswith(_FREE) and _SECRET.search(name) and value
        yield f"{name} = {to_toml(MASK if is_secret else value)}  # {origin}"


def _at(tree: Any, key: list[str]) -> Any:
    for part in key:
        tree = tree[part]
    return tree
