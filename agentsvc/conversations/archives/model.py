"""Records of workspace archives. Pure."""

from datetime import datetime
from enum import StrEnum

import msgspec

from agentsvc.base import new_id, now


class ArchiveState(StrEnum):
    """The state of an archive."""

    SAVING = "saving"
    """It is being saved"""
    READY = "ready"
    """It is saved"""
    FAILED = "failed"
    """It could not be saved, or its file is gone"""


class PausedState(StrEnum):
    """How a sandbox was paused before it was resumed to save its workspace."""

    NONE = ""
    PAUSED = "paused"
    STOPPED = "stopped"
    CULLED = "culled"
    """Paused by an idle rule, so that the next message resumes it."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The saved workspace of a conversation, which may have been deleted since."""

    id: str = msgspec.field(default_factory=new_id)
    user_id: str
    conversation_id: str
    title: str
    sandbox_id: str
    working_dir: str
    """The project directory in the original sandbox."""
    directory: str
    """The name of that directory below the workspace; empty if it is the workspace itself."""
    state: ArchiveState = ArchiveState.SAVING
    reason: str = ""
    """Why it could not be saved."""
    releases: bool
    """Whether its sandbox is released once it is saved or has failed."""
    size_bytes: int = 0
    unpacked_bytes: int = 0
    files: int = 0
    skipped: int = 0
    """The number of links and special files that were left out."""
    created_at: datetime = msgspec.field(default_factory=now)
    rest: PausedState = PausedState.NONE
    """The state to which its sandbox returns once it is saved or has failed."""
