"""Commands of an ordinary user, for tests that root runs, too."""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

ORDINARY: Final = 28657
"""A number that is no user's."""


def ordinary_user(directory: Path) -> list[str]:
    """Return what a command is begun with that is not to be root's; what is made there is the user's."""
    if os.geteuid() != 0:
        return []
    directory.chmod(0o777)  # nothing is in it yet
    setpriv = shutil.which("setpriv")
    assert setpriv is not None
    # The right to pass through directories of root's, where this Python may be.
    rights = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    ids = ["--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups"]
    return [setpriv, *ids, *rights]


def plain_user(directory: Path) -> list[str]:
    """Return what a command is begun with that is not to be root's and has no rights at all.

    Directories of root's in which this Python or these tests are show them and nothing else to it.
    """
    if os.geteuid() != 0:
        return []
    directory.chmod(0o777)
    shown = {Path(sys.base_prefix).resolve(), Path(sys.prefix), Path(__file__).parents[1]}
    made = ["--dev-bind", "/", "/"]
    for top in {_closed(path) for path in shown} - {None}:
        made += ["--perms", "0755", "--tmpfs", str(top)]
        for path in (one for one in shown if one.is_relative_to(str(top))):
            for parent in reversed(path.relative_to(str(top)).parents):
                made += ["--perms", "0755", "--dir", str(Path(str(top), parent))]
            made += ["--bind", str(path), str(path)]
    program, setpriv = shutil.which("bwrap"), shutil.which("setpriv")
    assert program is not None
    assert setpriv is not None
    rights = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    ids = ["--reuid", str(ORDINARY), "--regid", str(ORDINARY), "--clear-groups"]
    return [program, *made, *rights, setpriv, *ids]


def _closed(path: Path) -> Path | None:
    """Return the outermost directory on the way that is closed to others."""
    for parent in reversed((path, *path.parents)):
        if not parent.stat().st_mode & 0o001:
            return parent
    return None
