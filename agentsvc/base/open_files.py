"""Raises the limit of open files for the server, and knows the one it was started with."""

import resource
from typing import Final

MAX_OPEN_FILES: Final = 65536
"""How many a server may have open, where its machine lets it."""

INITIAL_OPEN_FILES, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
"""How many a process could have open here when this was imported, before `raise_open_files`.

Sandboxes are given that: what watches files by `select` can have no more than 1024.
"""


def raise_open_files() -> int:
    """Let this process have as many open as it may, and return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted)
