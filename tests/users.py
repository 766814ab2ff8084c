"""Commands of an ordinary user, for tests that root runs, too."""

import os
import shutil
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
