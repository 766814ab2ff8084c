"""Writes what a server sends as a file: whole, or not at all."""

import contextlib
import sys
from collections.abc import Iterable
from pathlib import Path

from agentsvc.base import new_id
from agentsvc.cli import CommandFailed


def save(parts: Iterable[bytes], output: Path) -> None:
    """Write to a file, which stays as it was where the parts fail; `-` is standard output.

    A device or a pipe is written to. Raises CommandFailed where something cannot be written.
    """
    if str(output) == "-":
        sys.stdout.buffer.writelines(parts)
        sys.stdout.buffer.flush()
        return
    is_replaced = output.is_file() or not output.exists()
    place = output.resolve() if is_replaced else output
    draft = place.with_name(f".agentsvc-{new_id()}") if is_replaced else place
    try:
        with draft.open("wb") as opened:
            opened.writelines(parts)
        if is_replaced:
            draft.replace(place)
    except OSError as exc:
        raise CommandFailed(f"the file cannot be written: {exc.strerror}: {output}") from exc
    finally:
        if is_replaced:
            with contextlib.suppress(OSError):
                draft.unlink()
