"""Archives of workspaces: saved out of sandboxes into the data directory, and put into new ones.

`tarball` makes a safe archive of whatever a sandbox sends, `table` finds archives, `service` is what
others use.
"""

from agentsvc.conversations.archives.model import Archive, ArchiveState
from agentsvc.conversations.archives.service import Archives

__all__ = ["Archive", "ArchiveState", "Archives"]
