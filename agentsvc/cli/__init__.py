"""The `agentsvc` command. Each subcommand is a module of its own, imported when it is called.

Data is written to stdout and everything else to stderr; the exit code is 0 for success, 1 for failure
and 2 for wrong usage.
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
"""The subcommands by topic, in the order of the help text."""

COMMANDS: Final = tuple(name for names in GROUPS.values() for name in names)
"""The built-in subcommands; each is `agentsvc.cli.NAME.command`."""


class CommandFailed(click.ClickException):
    """Ends the process with exit code 1, an `error:` line and an optional `hint:` line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the two lines to stderr."""
        click.echo(f"error: {printable(self.message)}", file=file, err=file is None)
        if self.hint:
            click.echo(f"hint: {printable(self.hint)}", file=file, err=file is None)


def printable(text: str) -> str:
    """Return a text with control characters replaced by blanks, except newlines."""
    return "".join(char if char == "\n" or char.isprintable() else " " for char in text)


class LazyGroup(click.Group):
    """A group that imports a subcommand only when it is used.

    It also turns an AgentsvcError, OSError or UnicodeError of a subcommand into CommandFailed.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the subcommands."""
        from agentsvc.cli import plugincommands  # noqa: PLC0415  # rarely needed

        return [*COMMANDS, *plugincommands.names()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a subcommand, or None if it does not exist."""
        if cmd_name not in COMMANDS:
            from agentsvc.cli import plugincommands  # noqa: PLC0415  # rarely needed

            return plugincommands.find(cmd_name)
        with _light_imports():
            module = importlib.import_module(f"agentsvc.cli.{cmd_name}")
            command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named subcommand; for an unknown name, suggest a similar one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as exc:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close or "mean" in exc.message.lower():
                raise
            raise click.UsageError(f"{exc.message} Did you mean `{close[0]}`?", ctx) from exc

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands by topic."""
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
        """Parse the arguments, with errors turned into CommandFailed; may print help or version."""
        with _errors_translated():
            return super().make_context(*arguments, **more)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, with errors turned into CommandFailed."""
        with _errors_translated():
            return super().invoke(ctx)


def discard_unwritten_output() -> bool:
    """Flush standard output; if that fails, redirect it to /dev/null and return True.

    Otherwise Python would try to write the buffer again at exit.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


@contextlib.contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as exc:
        # The reader has closed the pipe.
        discard_unwritten_output()
        raise click.exceptions.Exit from exc
    except StartFailed as exc:
        raise CommandFailed(exc.message, exc.hint) from exc
    except AgentsvcError as exc:
        raise CommandFailed(exc.message) from exc
    except UnicodeError as exc:
        raise CommandFailed(f"invalid text: {exc}") from exc
    except OSError as exc:
        if exc.filename is None and not is_no_room(exc):
            raise
        is_untaken = discard_unwritten_output()
        place = exc.filename or ("standard output" if is_untaken else "")
        is_full = is_no_room(exc)
        why = "the disk is full" if is_full else exc.strerror or str(exc) or type(exc).__name__
        where = f": {place}" if place else ""
        raise CommandFailed(f"{why}{where}", hint_against(exc)) from exc


@contextlib.contextmanager
def _light_imports() -> Iterator[None]:
    """Speed up imports: disable garbage collection, and defer loading certificates."""
    # Imported objects are never garbage, so no collection has to scan them, now or later.
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
