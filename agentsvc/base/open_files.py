"""Raises the limit of open files of the server, and records the initial limit."""

import resource
from typing import Final

MAX_OPEN_FILES: Final = 65536
"""The limit that a server raises itself to, if it may."""

INITIAL_OPEN_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The limit of this process at import, before `raise_open_files`.

Sandboxes get this limit, because programs that use `select` support at most 1024 descriptors.
"""


def raise_open_files() -> int:
    """Raise the limit of this process as far as allowed, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
