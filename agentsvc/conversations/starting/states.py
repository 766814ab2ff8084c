"""States of a start: each step of the pipeline takes one and returns the next."""

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
    """A start in progress: its stored task and conversation, and the deadline for retries."""

    task: StartTask
    conversation: Conversation
    deadline: datetime
    """Steps are retried until then; set anew after a restart, so downtime does not count."""
    sandbox: Sandbox | None = None
    """The sandbox as last seen running, None before that; used to explain a failure."""


class CheckedStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose order is valid with its user's settings."""

    start: Start
    settings: Settings
    tokens: dict[Provider, tuple[str, Secret]] = {}
    """The base URL and the token of each git provider that the user has a token for."""


class StartWithSandbox(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose sandbox runs and whose agent server answers."""

    checked: CheckedStart
    sandbox: Sandbox
    agent: AgentServer


class StartWithWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A start whose workspace has its files."""

    hosted: StartWithSandbox
    workspace: Workspace
    old_dir: str | None = None
    """The former working directory of files that come from an archive or another sandbox."""
    hook_config: dict[str, Any] | None = None
    """The agent's hooks, set by `FileSteps.load_hooks`; None if there are none."""
