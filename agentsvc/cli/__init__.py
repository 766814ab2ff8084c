"""The `agentsvc` command. Each subcommand is a module of its own, imported when it is called.

Data goes to stdout and everything else to stderr; the exit code is 0 for done, 1 for failed and
2 for wrong usage.
"""

import contextlib
import difflib
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any, Final

import click

from agentsvc import __version__
from agentsvc.base import AgentsvcError, StartFailed, hint_against, is_no_room
from agentsvc.cli import certificates

GROUPS: Final = {
    "Conversations": ("run", "chat", "conversations", "sandboxes", "status", "open"),
    "Settings": ("login", "logout", "settings", "secrets", "users", "keys"),
    "Server": ("serve", "demo", "config", "doctor", "systemd", "deploy", "images", "plugins"),
    "Data": ("backup", "restore", "prune", "db", "audit"),
    "Reference": ("openapi", "sbom", "completion"),
}
"""The subcommands by what they are about, in the order in which help lists them."""

COMMANDS: Final = tuple(name for names in GROUPS.values() for name in names)
"""Each is `agentsvc.cli.NAME.command`.

Those of plugins come after them.
"""


class CommandFailed(click.ClickException):
    """Ends the process with exit code 1, an `error:` line and perhaps a `hint:` line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the two lines to stderr."""
        click.echo(f"error: {printable(self.message)}", file=file, err=file is None)
        if self.hint:
            click.echo(f"hint: {printable(self.hint)}", file=file, err=file is None)


def printable(text: str) -> str:
    """Return a text of one or more lines, without what else a terminal would obey."""
    return "".join(char if char == "\n" or char.isprintable() else " " for char in text)


class LazyGroup(click.Group):
    """A group that imports a subcommand only when somebody asks for it.

    It also answers every deliberate error of the core, and those of files, connections and texts, in
    the one form the command line has.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        from agentsvc.cli import plugincommands  # noqa: PLC0415  # few need it

        return [*COMMANDS, *plugincommands.names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            from agentsvc.cli import plugincommands  # noqa: PLC0415  # few need it

            return plugincommands.find(cmd_name)
        with _light_imports():
            module = importlib.import_module(f"agentsvc.cli.{cmd_name}")
            command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that is named; of one that is not there, say what may be meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close or "mean" in exc.message.lower():
                raise
            raise click.UsageError(f"{exc.message} Did you mean `{close[0]}`?", ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands in their groups."""
        of_plugins = tuple(name for name in self.list_commands(ctx) if name not in COMMANDS)
        for title, names in {**GROUPS, "Plugins": of_plugins}.items():
            rows = []
            for name in names:
                found = self.get_command(ctx, name)
                rows.append((name, found.get_short_help_str() if found else ""))
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def make_context(self, *arguments: Any, **more: Any) -> click.Context:
        """Read the arguments; help and version are printed meanwhile."""
        with _errors_told():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; such an error becomes CommandFailed."""
        with _errors_told():
            return super().invoke(ctx)


def drop_unwritten() -> bool:
    """Have what standard output does not take go nowhere, and say whether there is such.

    Python tries it again at its end.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as exc:
        # Who reads has seen enough.
        drop_unwritten()
        raise click.exceptions.Exit from exc
    except StartFailed as exc:
        raise CommandFailed(exc.message, exc.hint) from exc
    except AgentsvcError as exc:
        raise CommandFailed(exc.message) from exc
    except UnicodeError as exc:
        raise CommandFailed(f"a text cannot be used: {exc}") from exc
    except OSError as exc:
        if exc.filename is None and not is_no_room(exc):
            raise
        is_untaken = drop_unwritten()
        place = exc.filename or ("standard output" if is_untaken else "")
        is_full = is_no_room(exc)
        why = "the disk is full" if is_full else exc.strerror or str(exc) or type(exc).__name__
        where = f": {place}" if place else ""
        raise CommandFailed(f"{why}{where}", hint_against(exc)) from exc


@contextlib.contextmanager
def _light_imports() -> Iterator[None]:
    """Leave out, of imports, what a start needs not wait for."""
    # Nothing that is imported is garbage, and none of it will be: no collection has to look at it.
    gc.disable()
    try:
        with certificates.unread():
            yield
    finally:
        gc.freeze()
        gc.enable()


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agentsvc", message="%(prog)s %(version)s")
def cli() -> None:
    """Run software-agent conversations inside sandboxes on your own machine."""
