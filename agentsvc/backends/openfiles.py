"""Raises the limit of open files for the server, and restores it for sandboxes."""

import resource
from typing import Final

from agentsvc.backends.children import FILES_AT_MOST

AT_MOST: Final = FILES_AT_MOST
"""How many a server may have open, where its machine lets it; sandboxes are rid of as many."""

FOUND, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
"""How many a process could have open here when this was imported, before `allow_many`.

Sandboxes are given that: what watches files by `select` can have no more than 1024.
"""


def allow_many() -> None:
    """Let this process have as many open as it may."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = AT_MOST if most == resource.RLIM_INFINITY else min(AT_MOST, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
