"""V1 types of workspace files and git changes."""

from typing import Annotated, Any, Final

import msgspec

from agentsvc.conversations import USUAL_ROOT, ConversationView, HookEvent, Skill
from agentsvc.http.urls import Links
from agentsvc.http.v1.types_conversations import from_view
from agentsvc.http.wire import encode

DEFAULT_FILE: Final = "/workspace/project/PLAN.md"

type Path = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class FileQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which file to read: an absolute path, or one relative to the project."""

    file_path: Path = DEFAULT_FILE
    """The file: an absolute path, or one relative to the project"""


class FilesQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which directory to list: an absolute path, or one relative to the project."""

    path: Path = USUAL_ROOT
    """The directory: an absolute path, or one relative to the project"""


class GitQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look, and what to compare with."""

    path: Path
    """The repository, or a file or directory in it: an absolute path, or one relative to the
    project"""
    ref: Annotated[str, msgspec.Meta(max_length=255)] | None = None
    """Commit, branch or tag to compare with; left out: the remote branch, else the last commit"""


class SkillsView(msgspec.Struct, frozen=True, kw_only=True):
    """The skills of a conversation."""

    skills: list[Skill]
    """The skills; empty unless the sandbox runs"""


class HooksView(msgspec.Struct, frozen=True, kw_only=True):
    """The hooks of a conversation's project."""

    hooks: list[HookEvent]
    """The hooks by what they are for; empty unless the sandbox runs"""


def to_meta(view: ConversationView) -> bytes:
    """Return what a download tells of the conversation: what is stored, and no key."""
    shown: dict[str, Any] = msgspec.structs.asdict(from_view(view, Links(base="")))
    for name in ("sandbox_status", "execution_status", "conversation_url", "session_api_key"):
        del shown[name]
    return msgspec.json.format(encode(shown), indent=2)
