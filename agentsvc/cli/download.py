"""Writes what a server sends as a file: once all of it is there."""

import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from agentsvc.cli import CommandFailed


def save(parts: Iterable[bytes], output: Path) -> None:
    """Write to a file, which stays as it was where the parts fail; `-` is standard output.

    They are kept in a temporary file until all are there, and then written as any program writes: a
    file keeps its mode and its links, and a device or a pipe is written to. Only where the place
    fails then, such as a full disk, half of it may be left. Raises CommandFailed where something
    cannot be written.
    """
    if str(output) == "-":
        sys.stdout.buffer.writelines(parts)
        sys.stdout.buffer.flush()
        return
    with tempfile.TemporaryFile() as whole:
        whole.writelines(parts)
        whole.seek(0)
        try:
            with output.open("wb") as opened:
                shutil.copyfileobj(whole, opened)
        except OSError as exc:
            raise CommandFailed(f"the file cannot be written: {exc.strerror}: {output}") from exc
