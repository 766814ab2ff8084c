"""Writes a new secret to the terminal once, or to a file of mode 0600.

Output to anything but a terminal could end up in a journal, a log or the output of a build.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from agentsvc.base import create_private, hint_against, is_no_room, short_id
from agentsvc.cli import CommandFailed, discard_unwritten_output
from agentsvc.cli.options import Decorator

_STANDARD_OUTPUT: Final = "-"

output_option: Decorator = click.option(
    "--output",
    metavar="FILE",
    help="New file to write it to, or `-` for standard output; default: standard output if that is a"
    " terminal, otherwise a new file in the data directory, whose path is printed.",
)


class SecretOutput:
    """Destination of one secret; created before the secret, so that the secret is not lost."""

    def __init__(self, file: Path, descriptor: int | None) -> None:
        self._file = file
        self._descriptor = descriptor

    def tell(self, what: str, secret: str) -> None:
        """Write the secret, and a label to standard error.

        If standard output cannot be written, writes the secret to the file and raises CommandFailed.
        """
        if self._descriptor is None:
            click.echo(f"{what}, shown only this once:", err=True)
            try:
                click.echo(secret)
            except OSError as exc:
                discard_unwritten_output()
                # The secret is already in use.
                with os.fdopen(create_private(self._file), "w") as opened:
                    opened.write(f"{secret}\n")
                raise CommandFailed(
                    f"standard output cannot be written ({exc.strerror}), it is in {self._file}"
                ) from exc
            return
        os.write(self._descriptor, f"{secret}\n".encode())
        os.fsync(self._descriptor)
        click.echo(f"{what}, in a file that only its owner can read:", err=True)
        click.echo(self._file)


@contextlib.contextmanager
def secret_output(output: str | None, directory: Path, name: str) -> Iterator[SecretOutput]:
    """Yield the destination: `--output`, otherwise the terminal, otherwise a file in `directory`."""
    spare = directory / f"{name}-{short_id()}"
    if output == _STANDARD_OUTPUT or (output is None and is_terminal()):
        yield SecretOutput(spare, None)
        return
    file = Path(output) if output else spare
    try:
        descriptor = create_private(file)
    except OSError as exc:
        if is_no_room(exc):
            raise
        raise CommandFailed(
            f"the file cannot be created: {exc.strerror}: {file}", hint_against(exc)
        ) from exc
    try:
        yield SecretOutput(file, descriptor)
    except BaseException:
        # Keep the file if it contains the secret, which is then already in use.
        if not os.fstat(descriptor).st_size:
            file.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def is_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()
