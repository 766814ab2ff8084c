"""A small disk for a server, which a test fills up."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

DISK_BYTES: Final = 8 * 1024 * 1024


class Disk:
    """A small disk at a path, seen only by those who are started with `launcher`."""

    def __init__(self, path: Path, size_bytes: int = DISK_BYTES) -> None:
        self._path = path
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        mount = f"mount -t tmpfs -o size={size_bytes},mode=0700 none '{path}'"
        # It ends, and with it the disk, when we close its input.
        self._holder = subprocess.Popen(
            ["unshare", *user, "--mount", "sh", "-c", f"{mount} && echo ready && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self.is_there = self._holder.stdout.readline() == b"ready\n"
        entered = ["--user", "--preserve-credentials"] if user else []
        target = f"--target={self._holder.pid}"
        self.launcher = ["nsenter", target, *entered, "--mount", "--"]
        self.seen_at = Path(f"/proc/{self._holder.pid}/root{path}")
        """Where everybody else sees it."""
        self._ballast = self.seen_at / "ballast"

    def fill(self) -> None:
        """Leave no room on it."""
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def mount(self, how: str) -> None:
        """Mount it once more, `ro` or `rw`; raises CalledProcessError, if files are open to write."""
        command = [*self.launcher, "mount", "-o", f"remount,{how}", str(self._path)]
        subprocess.run(command, check=True, capture_output=True)

    def make_room(self) -> None:
        self._ballast.unlink()

    def remove(self) -> str:
        """Give it up, and return what was said by who held it."""
        return self._holder.communicate()[1].decode()


@contextmanager
def mounted(place: Path, size_bytes: int = DISK_BYTES) -> Iterator[Disk]:
    """Yield a small disk at a path that is made for it; skips the test where it cannot be had."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("there is no unshare and nsenter here")
    place.mkdir()
    disk = Disk(place, size_bytes)
    try:
        if not disk.is_there:
            said = disk.remove()
            assert os.geteuid() != 0 or not os.environ.get("CI"), said
            pytest.skip(f"a disk cannot be mounted here: {said}")
        yield disk
    finally:
        disk.remove()
