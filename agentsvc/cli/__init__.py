"""The `agentsvc` command. Each subcommand is a module of its own, imported when it is called.

Data goes to stdout and everything else to stderr; the exit code is 0 for done, 1 for failed and
2 for wrong usage.
"""

import contextlib
import gc
import importlib
from collections.abc import Iterator
from typing import IO, Any, Final

import click

from agentsvc import __version__
from agentsvc.cli import certificates
from agentsvc.errors import HINT_ROOM, AgentsvcError, StartFailed, is_no_room

COMMANDS: Final = (
    "serve",
    "run",
    "demo",
    "conversations",
    "sandboxes",
    "settings",
    "secrets",
    "users",
    "keys",
    "audit",
    "doctor",
    "backup",
    "restore",
    "db",
    "systemd",
    "deploy",
    "prune",
    "config",
    "plugins",
    "images",
    "openapi",
    "sbom",
    "completion",
)
"""The subcommands, in the order in which help lists them; each is `agentsvc.cli.NAME.command`.

Those of plugins come after them.
"""


class CommandFailed(click.ClickException):
    """Ends the process with exit code 1, an `error:` line and perhaps a `hint:` line."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the two lines to stderr."""
        click.echo(f"error: {self.message}", file=file, err=file is None)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file, err=file is None)


class LazyGroup(click.Group):
    """A group that imports a subcommand only when somebody asks for it.

    It also answers every deliberate error of the core in the one form the command line has.
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

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand; a deliberate error becomes CommandFailed."""
        try:
            return super().invoke(ctx)
        except StartFailed as exc:
            raise CommandFailed(exc.message, exc.hint) from exc
        except AgentsvcError as exc:
            raise CommandFailed(exc.message) from exc
        except OSError as exc:
            if not is_no_room(exc):
                raise
            where = f": {exc.filename}" if exc.filename else ""
            raise CommandFailed(f"the disk is full{where}", HINT_ROOM) from exc


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
