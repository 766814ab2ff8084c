"""`agentsvc config`: prints the effective and the default configuration."""

import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any, Final

import click

from agentsvc.base import MASK
from agentsvc.cli.options import ConfigOptions, example, where_options
from agentsvc.config import Loaded, render_default, to_key, to_toml
from agentsvc.plugin import sections

_SECRET: Final = re.compile(
    r"(?:^|[._-])(?:key|password|secret|token|authorization)s?$", re.IGNORECASE
)

_FREE: Final = ("backends.", "extensions.", "specs.")


@click.group("config", epilog=example("agentsvc config show"))
def command() -> None:
    """Print the effective configuration, or the default one."""


@command.command(epilog=example("agentsvc config show | grep sandboxes"))
@where_options
def show(where: ConfigOptions) -> None:
    """Print every key with its value and the origin of the value.

    Values of backends, specs and plugins are masked if their key is named like a secret, also inside
    tables.
    """
    loaded = where.load()
    click.echo(f"config file: {loaded.path or 'none'}", err=True)
    for line in lines_of(loaded):
        click.echo(line)


@command.command(epilog=example("agentsvc config default > ~/.config/agentsvc/config.toml"))
def default() -> None:
    """Print the default config file, with a description of every key."""
    click.echo(render_default(sections()), nl=False)


def lines_of(loaded: Loaded) -> Iterator[str]:
    """Yield one line of TOML for each key, with its origin as the comment."""
    tree = loaded.tree()
    for name, origin in loaded.origins.items():
        key = _split(tree, name)
        value = reduce(getitem, key, tree)
        shown = _masked(name, value) if name.startswith(_FREE) else value
        yield f"{to_key(*key)} = {to_toml(shown)}  # {origin}"


def _split(tree: Any, name: str) -> list[str]:
    """Split a key into its parts; the name of a table may contain dots itself."""
    section, _, rest = name.partition(".")
    if not name.startswith(_FREE):
        return [section, rest]
    table = max((one for one in tree[section] if f"{rest}.".startswith(f"{one}.")), key=len)
    return [section, table, *filter(None, [rest[len(table) + 1 :]])]


def _masked(name: str, value: Any) -> Any:
    """Mask a value if it is named like a secret; recurses into tables and lists."""
    if value and _SECRET.search(name):
        return MASK
    if isinstance(value, dict):
        return {key: _masked(key, inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_masked("", inner) for inner in value]
    return value
