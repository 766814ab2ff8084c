"""Records of workspace archives. Pure."""

from datetime import datetime
from enum import StrEnum

import msgspec

from agentsvc.base import new_id, now


class ArchiveState(StrEnum):
    """How far the saving of a workspace has come."""

    SAVING = "saving"
    """It is being saved"""
    READY = "ready"
    """It is saved"""
    FAILED = "failed"
    """It could not be saved, or its file is gone"""


class PausedState(StrEnum):
    """How a sandbox rested before it was woken to be saved."""

    NONE = ""
    PAUSED = "paused"
    STOPPED = "stopped"
    CULLED = "culled"
    """Nobody used it, so that the next message wakes it."""


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """The saved workspace of one conversation, which may be gone since."""

    id: str = msgspec.field(default_factory=new_id)
    user_id: str
    conversation_id: str
    title: str
    sandbox_id: str
    working_dir: str
    """The project directory inside the sandbox it came from."""
    directory: str
    """What it is called below the workspace; empty where it is the workspace itself."""
    state: ArchiveState = ArchiveState.SAVING
    reason: str = ""
    """Why it is not saved."""
    releases: bool
    """Whether its sandbox is given up once it is saved, or cannot be."""
    size_bytes: int = 0
    unpacked_bytes: int = 0
    files: int = 0
    skipped: int = 0
    """How many links and special files were left out."""
    created_at: datetime = msgspec.field(default_factory=now)
    rest: PausedState = PausedState.NONE
    """What its sandbox goes back to once it is saved, or cannot be."""
