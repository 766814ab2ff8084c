"""Files that only their owner can read, from the moment they are there."""

import contextlib
import os
from pathlib import Path


def create_private(file: Path) -> int:
    """Return a descriptor of a new file that nobody else can read at any moment; raises OSError."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(file, flags, 0o600)


def replace_private(file: Path, text: str) -> None:
    """Write such a file in place of what was there, whole or not at all; raises OSError."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(create_private(draft), "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
    # Not every file system can do that with a directory.
    with contextlib.suppress(OSError):
        flush(file.parent)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
