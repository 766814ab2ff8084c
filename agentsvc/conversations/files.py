"""Files, git changes, skills and hooks, read from a conversation's running sandbox.

Nothing is stored here.
"""

import logging
from posixpath import normpath
from shlex import quote
from typing import Final

import msgspec

from agentsvc.agentserver import AgentServer, GitChange, GitDiff, convert_answer
from agentsvc.base import AgentRefused, AgentUnavailable, BadRequest, Conflict, NotFound, dashed
from agentsvc.conversations.model import ConversationView
from agentsvc.conversations.service import Conversations
from agentsvc.sandboxes import Sandboxes, SandboxStatus
from agentsvc.settings import SettingsStore

log = logging.getLogger(__name__)

USUAL_ROOT: Final = "/workspace/project"
"""The root that clients assume for projects: a directory in containers, an alias elsewhere."""

MAX_LISTED: Final = 2000
"""The most files that a listing has; further ones are left out."""

_CONTAINER_ROOT: Final = "/workspace"
_LIST_SECONDS: Final = 20.0
_NOT_LISTED: Final = (".git", ".venv", "__pycache__", "node_modules")
# Sorted as bytes, so that a limited listing is the same each time.
_LIST: Final = """
cd -- {folder} 2>/dev/null || exit 0
find . -type d \\( {hidden} \\) -prune -o -type f -print 2>/dev/null |
  cut -c 3- | LC_ALL=C sort | head -n {limit}
"""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill of a conversation's agent, and the words that trigger it."""

    name: str
    """Name of the skill"""
    type: str
    """`repo` is always in the agent's prompt, `knowledge` after a message with one of its triggers,
    `agentskills` when the agent requests it"""
    content: str
    """Text of the skill, in Markdown"""
    triggers: list[str] = []
    """Words in a message that trigger the skill; may be empty"""


class Hook(msgspec.Struct, frozen=True, kw_only=True, rename={"is_async": "async"}):
    """An action that runs on an event of the agent."""

    type: str
    """Type of the action; `command` runs a shell command"""
    command: str
    """Command for a shell in the sandbox"""
    timeout: int = 60
    """Time limit in seconds"""
    is_async: bool = False
    """Whether the agent continues while it runs"""


class HookMatcher(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks for the tools that match a name or pattern."""

    matcher: str
    """Name of a tool, or a pattern; `*` for every tool"""
    hooks: list[Hook]
    """Hooks that run for these tools"""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the agent, such as `pre_tool_use`, and its hooks."""

    event_type: str
    """Type of the event, such as `pre_tool_use`"""
    matchers: list[HookMatcher]
    """Hooks of the event, by the tools that they apply to"""


class ConversationFiles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Reads from the sandboxes of conversations."""

    conversations: Conversations
    sandboxes: Sandboxes
    settings: SettingsStore
    has_public_skills: bool

    async def read_text(self, user_id: str, conversation_id: str, path: str) -> str:
        """Return a text file, or an empty text if it cannot be read for any reason.

        The path is relative to the project, or absolute.
        """
        try:
            view = await self.conversations.get(user_id, conversation_id)
            agent = self.sandboxes.agent_of(view.sandbox)
            data = await agent.download(_locate(path, view)) if agent else b""
            return data.decode()
        except (AgentRefused, AgentUnavailable, NotFound, UnicodeDecodeError) as exc:
            log.debug(
                "file cannot be read",
                extra={"conversation_id": conversation_id, "reason": str(exc)},
            )
            return ""

    async def list_files(self, user_id: str, conversation_id: str, path: str) -> list[str]:
        """Return the relative paths of all files below a directory.

        Directories of git, installed packages and caches are left out. Raises as `git_changes`.
        """
        view = await self.conversations.get(user_id, conversation_id)
        command = listing_command(_locate(path, view))
        listing = await self._require_agent(view).read_listing(command, time_limit=_LIST_SECONDS)
        return [name for name in listing.split("\n") if name]

    async def git_changes(
        self, user_id: str, conversation_id: str, path: str, *, ref: str | None = None
    ) -> list[GitChange]:
        """Return the files below a directory that differ from a ref, by default the remote branch.

        Raises BadRequest for an unknown ref or path, Conflict while the sandbox is paused, NotFound
        if it cannot be reached for another reason or the path is outside of the workspace, and
        AgentRefused or AgentUnavailable.
        """
        check_ref(ref)
        view = await self.conversations.get(user_id, conversation_id)
        return await self._require_agent(view).git_changes(_locate(path, view), ref=ref)

    async def git_diff(
        self, user_id: str, conversation_id: str, path: str, *, ref: str | None = None
    ) -> GitDiff:
        """Return the contents of a file now and in a ref; raises as `git_changes`."""
        check_ref(ref)
        view = await self.conversations.get(user_id, conversation_id)
        return await self._require_agent(view).git_diff(_locate(path, view), ref=ref)

    async def skills(self, user_id: str, conversation_id: str) -> list[Skill]:
        """Return the enabled skills of a conversation; empty unless its sandbox runs.

        Raises NotFound, AgentRefused or AgentUnavailable.
        """
        view = await self.conversations.get(user_id, conversation_id)
        agent = self.sandboxes.agent_of(view.sandbox)
        if agent is None:
            return []
        found = await agent.load_skills(
            view.conversation.working_dir, load_public=self.has_public_skills
        )
        disabled = (await self.settings.get(user_id)).disabled_skills or ()
        return [skill for skill in convert_answer(found, list[Skill]) if skill.name not in disabled]

    async def hooks(self, user_id: str, conversation_id: str) -> list[HookEvent]:
        """Return the project's present hooks; empty unless its sandbox runs. Raises as `skills`."""
        view = await self.conversations.get(user_id, conversation_id)
        agent = self.sandboxes.agent_of(view.sandbox)
        if agent is None:
            return []
        found = await agent.load_hooks(view.conversation.working_dir) or {}
        by_event = convert_answer(found, dict[str, list[HookMatcher]])
        return [
            HookEvent(event_type=event_type, matchers=matchers)
            for event_type, matchers in by_event.items()
            if matchers
        ]

    def _require_agent(self, view: ConversationView) -> AgentServer:
        agent = self.sandboxes.agent_of(view.sandbox)
        if agent is not None:
            return agent
        if view.sandbox_status is SandboxStatus.PAUSED:
            raise Conflict("Sandbox is paused; resume it before reading git state.")
        raise NotFound(
            f"The sandbox of conversation {dashed(view.conversation.id)} cannot be reached:"
            f" it is {view.sandbox_status}"
        )


def listing_command(folder: str) -> str:
    """Return the shell command that lists the files below a directory; it may be missing."""
    hidden = " -o ".join(f"-name {name}" for name in _NOT_LISTED)
    return _LIST.format(folder=quote(folder), hidden=hidden, limit=MAX_LISTED)


def check_ref(ref: str | None) -> None:
    """Raise BadRequest for a ref that git would parse as an option, or that is never valid."""
    if ref is None:
        return
    if not ref or ref.startswith("-") or not ref.isprintable() or " " in ref:
        raise BadRequest("`ref` should be the name of a branch, a tag or a commit")


def locate(path: str, *, project: str, root: str, conversation_id: str) -> str:
    """Return the absolute path of a file in a sandbox whose projects are below `root`.

    Relative paths are relative to the project. If the root is elsewhere, paths below `USUAL_ROOT`
    are mapped to the project as well.
    """
    if not path.startswith("/"):
        return f"{project}/{path}" if project else path
    is_usual = path == USUAL_ROOT or path.startswith(f"{USUAL_ROOT}/")
    if not is_usual or not project or root.startswith(_CONTAINER_ROOT):
        return path
    return _relocate(path.removeprefix(USUAL_ROOT), project, conversation_id)


def _relocate(rest: str, project: str, conversation_id: str) -> str:
    """Map the part of a path below `USUAL_ROOT` to the project directory.

    Clients may put the conversation's id or the repository's name before it.
    """
    for name in (conversation_id, project.rsplit("/", 1)[-1]):
        if rest == f"/{name}" or rest.startswith(f"/{name}/"):
            rest = rest.removeprefix(f"/{name}")
    return project + rest


def is_inside(path: str, *roots: str) -> bool:
    """Return whether an absolute path, after `..` is resolved, is one of the roots or below one."""
    plain = normpath(path)
    return any(root and (plain == root or plain.startswith(f"{root}/")) for root in roots)


def _locate(path: str, view: ConversationView) -> str:
    """Return the absolute path of a file; raises NotFound outside of the sandbox's workspace.

    Process sandboxes share the file system with the server's own files.
    """
    project = view.conversation.working_dir.rstrip("/")
    root = view.sandbox.working_dir.rstrip("/") if view.sandbox else ""
    found = locate(path, project=project, root=root, conversation_id=view.conversation.id)
    if not is_inside(found, project, root):
        raise NotFound("The path is outside of the workspace")
    return normpath(found)
