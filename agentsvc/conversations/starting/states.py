"""The states of a start: each step takes one and returns the next."""

from datetime import datetime
from typing import Any

import msgspec

from agentsvc.agentserver import AgentServer
from agentsvc.base import Secret
from agentsvc.conversations.model import Conversation, StartTask
from agentsvc.conversations.starting.workspace import Workspace
from agentsvc.domain import Provider
from agentsvc.sandboxes import Sandbox
from agentsvc.settings import Settings


class Start(msgspec.Struct, kw_only=True):
    """One start on its way: what is stored of it, and how long its steps are tried again."""

    task: StartTask
    conversation: Conversation
    deadline: datetime
    """Until when steps are tried again; the time the server was down does not count."""
    seen: Sandbox | None = None
    """Its sandbox once that has run, by which a failure is explained."""


class CheckedStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose request can be carried out with the settings of its user."""

    start: Start
    settings: Settings
    tokens: dict[Provider, tuple[str, Secret]] = {}
    """URL and token of each git host that the user has a token for."""


class StartWithSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose sandbox runs, with an agent server that answers."""

    asked: CheckedStart
    sandbox: Sandbox
    agent: AgentServer


class StartWithWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose files are there."""

    host: StartWithSandbox
    workspace: Workspace
    old_dir: str | None = None
    """Where the files were, if they come from an archive or another sandbox."""
    hook_config: dict[str, Any] | None = None
    """The hooks of the agent, once they were looked for."""
