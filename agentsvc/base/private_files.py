"""Files that only their owner can read, from the moment they are created."""

import contextlib
import os
from pathlib import Path


def create_private(file: Path) -> int:
    """Create a file with mode 0600 and return its descriptor; raises OSError, also if it exists."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(file, flags, 0o600)


def replace_private(file: Path, text: str) -> None:
    """Write a private file atomically in place of an old one; raises OSError."""
    draft = file.with_name(f"{file.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(create_private(draft), "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
    # Some file systems cannot flush a directory.
    with contextlib.suppress(OSError):
        flush(file.parent)


def flush(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
