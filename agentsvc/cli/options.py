"""Command-line options shared by several subcommands."""

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from agentsvc.base import StartFailed
from agentsvc.cli import CommandFailed
from agentsvc.config import DataDirectory, Loaded
from agentsvc.config import schema as config
from agentsvc.plugin import sections

type Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE: Final = click.Path(path_type=Path, dir_okay=False)
"""A file that need not exist, such as one to write."""
EXISTING_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_MAX_CHARACTERS: Final = 10 * 1024 * 1024


def _check_not_empty(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> str | None:
    """Reject an empty text, as of an unset shell variable: it would mean another directory."""
    if text == "":
        raise click.BadParameter("it must not be empty")
    return text


config_option: Decorator = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Config file; default: AGENTSVC_CONFIG, then ~/.config/agentsvc/config.toml.",
)
data_dir_option: Decorator = click.option(
    "--data-dir",
    metavar="DIR",
    callback=_check_not_empty,
    help="Directory for database, keys and sandboxes; default: ~/.local/share/agentsvc.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text."
)
output_option: Decorator = click.option(
    "--output",
    type=click.File("wb", lazy=True),
    default="-",
    metavar="FILE",
    help="File to write; default: standard output.",
)
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def example(*lines: str) -> str:
    """Return an epilog for help: an example whose lines are not wrapped."""
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def read_given(file: Path, *, errors: str = "replace") -> str:
    """Return the text of a file given by the user; raises CommandFailed if it is too long."""
    with file.open(encoding="utf-8-sig", errors=errors) as opened:
        text = opened.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise CommandFailed(f"the file is longer than {_MAX_CHARACTERS} characters: {file}")
    return text


def load_config(
    file: Path | None, environ: Mapping[str, str] | None = None, **overrides: Any
) -> Loaded:
    """Load the configuration; an override is named `section__key`, and ignored if None."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    found = os.environ if environ is None else environ
    return config.load(file, found, dotted, sections=sections())


def data_dir_of(loaded: Loaded) -> DataDirectory:
    """Return the data directory of a configuration, without accessing it."""
    return DataDirectory(path=config.data_dir(loaded.config, os.environ))


def existing_data_dir(loaded: Loaded) -> DataDirectory:
    """Return the data directory; raises StartFailed unless it contains a database."""
    data_dir = data_dir_of(loaded)
    if not data_dir.database.is_file():
        hint = "start the server once, or pass its data directory with --data-dir"
        raise StartFailed(f"there is no database in {data_dir.path}", hint=hint)
    return data_dir


class ConfigOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that select the configuration and the data directory."""

    data_dir: str | None
    config_file: Path | None

    def load(self) -> Loaded:
        """Load the configuration."""
        return load_config(self.config_file, server__data_dir=self.data_dir)

    def data_directory(self) -> DataDirectory:
        """Return the data directory; raises StartFailed if it has no database."""
        return existing_data_dir(self.load())


def pop_struct[T: msgspec.Struct](kind: type[T], given: dict[str, Any]) -> T:
    """Remove the options of a struct's fields, by their encoded names, and return the struct."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: given.pop(field.encode_name, None) for field in fields})


def as_struct(name: str, kind: type[msgspec.Struct], *options: Decorator) -> Decorator:
    """Pass several options to a command as one argument: a struct of this kind and name."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(*arguments: Any, **given: Any) -> Any:
            chosen = pop_struct(kind, given)
            return command(*arguments, **given, **{name: chosen})

        made: Callable[..., Any] = called
        for option in options:
            made = option(made)
        return made

    return decorate


where_options: Final = as_struct("where", ConfigOptions, config_option, data_dir_option)
"""Adds the options for configuration and data directory, passed as `where`."""
