"""Command-line options shared by several subcommands."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from agentsvc.base import StartFailed
from agentsvc.config import DataDirectory, Loaded
from agentsvc.config import schema as config
from agentsvc.plugin import sections

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config_option: Decorator = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Config file; otherwise AGENTSVC_CONFIG, then ~/.config/agentsvc/config.toml.",
)
data_dir_option: Decorator = click.option(
    "--data-dir",
    metavar="DIR",
    help="Directory for database, keys and sandboxes; otherwise ~/.local/share/agentsvc.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs."
)
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


def example(*lines: str) -> str:
    """Return the end of a help text: an example whose lines stay as they are."""
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def load_config(
    file: Path | None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> Loaded:
    """Read the configuration; an override is named `section__key` and None means not given."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    found = os.environ if environ is None else environ
    return config.load(file, found, dotted, sections=sections())


def data_dir_of(loaded: Loaded) -> DataDirectory:
    """Return the data directory a configuration names, without touching it."""
    return DataDirectory(path=config.data_dir(loaded.config, os.environ))


def existing_data_dir(loaded: Loaded) -> DataDirectory:
    """Return the data directory; raises StartFailed unless a server has made its database."""
    data_dir = data_dir_of(loaded)
    if not data_dir.database.is_file():
        raise StartFailed(
            f"there is no database in {data_dir.path}",
            hint="start the server once, or name its data directory with --data-dir",
        )
    return data_dir


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of a command say of the configuration and the data directory it is for."""

    data_dir: str | None
    config_file: Path | None

    def load(self) -> Loaded:
        """Read the configuration."""
        return load_config(self.config_file, server__data_dir=self.data_dir)

    def places(self) -> DataDirectory:
        """Return the data directory; raises StartFailed where there is none."""
        return existing_data_dir(self.load())


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name the configuration and data directory, as `where`."""

    @functools.wraps(command)
    def called(*, data_dir: str | None, config_file: Path | None, **options: Any) -> Any:
        where = Where(data_dir=data_dir, config_file=config_file)
        return command(where=where, **options)

    return data_dir_option(config_option(called))
