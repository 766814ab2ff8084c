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
"""A file that is written, or need not be there."""
EXISTING_FILE: Final = click.Path(path_type=Path, exists=True, dir_okay=False)
_MAX_CHARACTERS: Final = 10 * 1024 * 1024


def _check_not_empty(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> str | None:
    """Refuse what a variable of a shell that is not set leaves: it would mean another directory."""
    if text == "":
        raise click.BadParameter("it is empty")
    return text


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
    callback=_check_not_empty,
    help="Directory for database, keys and sandboxes; otherwise ~/.local/share/agentsvc.",
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs."
)
output_option: Decorator = click.option(
    "--output",
    type=click.File("wb", lazy=True),
    default="-",
    metavar="FILE",
    help="File to write; otherwise standard output.",
)
yes_option: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


def example(*lines: str) -> str:
    """Return the end of a help text: an example whose lines stay as they are."""
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def read_given(file: Path, *, errors: str = "replace") -> str:
    """Return the text of a file that is named; raises CommandFailed where it has no end in sight."""
    with file.open(encoding="utf-8-sig", errors=errors) as opened:
        text = opened.read(_MAX_CHARACTERS + 1)
    if len(text) > _MAX_CHARACTERS:
        raise CommandFailed(f"the file has more than {_MAX_CHARACTERS} characters: {file}")
    return text


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
        hint = "start the server once, or name its data directory with --data-dir"
        raise StartFailed(f"there is no database in {data_dir.path}", hint=hint)
    return data_dir


class ConfigOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of a command say of the configuration and the data directory it is for."""

    data_dir: str | None
    config_file: Path | None

    def load(self) -> Loaded:
        """Read the configuration."""
        return load_config(self.config_file, server__data_dir=self.data_dir)

    def data_directory(self) -> DataDirectory:
        """Return the data directory; raises StartFailed where there is none."""
        return existing_data_dir(self.load())


def pop_struct[T: msgspec.Struct](kind: type[T], given: dict[str, Any]) -> T:
    """Take the options out of those given that the fields of a struct are encoded as."""
    fields = msgspec.structs.fields(kind)
    return kind(**{field.name: given.pop(field.encode_name, None) for field in fields})


def as_struct(name: str, kind: type[msgspec.Struct], *options: Decorator) -> Decorator:
    """Give a command several options as one argument of this name, a struct."""

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
"""Gives a command the options that name the configuration and data directory, as `where`."""
