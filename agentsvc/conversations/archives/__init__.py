"""Archives of workspaces: saved from sandboxes to the data directory, and restored to new ones.

`tarball` rewrites the tar file of a sandbox into a safe archive, `table` has the SQL, `service` is
the interface.
"""

from agentsvc.conversations.archives.model import Archive, ArchiveState
from agentsvc.conversations.archives.service import Archives

__all__ = ["Archive", "ArchiveState", "Archives"]
