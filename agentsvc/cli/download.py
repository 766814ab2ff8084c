"""Saves a download to a file, after all of it was received."""

import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from agentsvc.cli import CommandFailed


def save(parts: Iterable[bytes], output: Path) -> None:
    """Write chunks to a file, which is unchanged if the download fails; `-` is standard output.

    Chunks are collected in a temporary file and then copied, so that the file keeps its mode and
    links, and devices and pipes work. A failure of that copy, such as a full disk, may leave an
    incomplete file. Raises CommandFailed if the file cannot be written.
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
