"""Reads files, git changes, skills and hooks from a conversation's sandbox.

Nothing is kept here. What a sandbox does not run for cannot be read.
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
"""Where clients take every project to be; it is there in containers, and stands for it elsewhere."""

MAX_LISTED: Final = 2000
"""Of more files in a project only so many are listed."""

_CONTAINER_ROOT: Final = "/workspace"
_LIST_SECONDS: Final = 20.0
_NOT_LISTED: Final = (".git", ".venv", "__pycache__", "node_modules")
# The names are sorted as bytes, so that the same ones are left out each time.
_LIST: Final = """
cd -- {folder} 2>/dev/null || exit 0
find . -type d \\( {hidden} \\) -prune -o -type f -print 2>/dev/null |
  cut -c 3- | LC_ALL=C sort | head -n {limit}
"""


class Skill(msgspec.Struct, frozen=True, kw_only=True):
    """Something an agent of the conversation has learned, and the words that call for it."""

    name: str
    """Name of the skill"""
    type: str
    """`repo` is always told to the agent, `knowledge` when one of its triggers is said,
    `agentskills` when the agent asks for it"""
    content: str
    """Text of the skill, in Markdown"""
    triggers: list[str] = []
    """Words in a message that call for the skill; empty if none do"""


class Hook(msgspec.Struct, frozen=True, kw_only=True, rename={"is_async": "async"}):
    """One thing that is done when something happens."""

    type: str
    """What is done; `command` runs a command"""
    command: str
    """The command, for a shell in the sandbox"""
    timeout: int = 60
    """Seconds it may take"""
    is_async: bool = False
    """Whether the agent goes on while it runs"""


class HookMatcher(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that some hooks are for, as a name or pattern."""

    matcher: str
    """Name of a tool, or a pattern; `*` for every tool"""
    hooks: list[Hook]
    """What is done for them"""


class HookEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What can happen, such as `pre_tool_use`, and the hooks on it."""

    event_type: str
    """What has to happen, such as `pre_tool_use`"""
    matchers: list[HookMatcher]
    """The hooks on it, by the tools they are for"""


class ConversationFiles(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Reads out of the sandboxes that conversations live in."""

    conversations: Conversations
    sandboxes: Sandboxes
    settings: SettingsStore
    has_public_skills: bool

    async def read_text(self, user_id: str, conversation_id: str, path: str) -> str:
        """Return a text file, or an empty text if it cannot be had for whatever reason.

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
        """Return the files below a directory, however deep, relative to it.

        What is in no project's own history is left out: that of git, installed packages and
        caches. Raises as `git_changes`.
        """
        view = await self.conversations.get(user_id, conversation_id)
        command = listing_command(_locate(path, view))
        listing = await self._require_agent(view).read_listing(command, time_limit=_LIST_SECONDS)
        return [name for name in listing.split("\n") if name]

    async def git_changes(
        self, user_id: str, conversation_id: str, path: str, *, ref: str | None = None
    ) -> list[GitChange]:
        """Return which files below a directory differ from a ref, or else from the remote branch.

        Raises BadRequest for an unknown ref or path, Conflict while the sandbox is paused, NotFound
        if it cannot be reached for another reason, AgentRefused or AgentUnavailable.
        """
        check_ref(ref)
        view = await self.conversations.get(user_id, conversation_id)
        return await self._require_agent(view).git_changes(_locate(path, view), ref=ref)

    async def git_diff(
        self, user_id: str, conversation_id: str, path: str, *, ref: str | None = None
    ) -> GitDiff:
        """Return a file as it is and as it is in a ref; raises as `git_changes`."""
        check_ref(ref)
        view = await self.conversations.get(user_id, conversation_id)
        return await self._require_agent(view).git_diff(_locate(path, view), ref=ref)

    async def skills(self, user_id: str, conversation_id: str) -> list[Skill]:
        """Return the skills a conversation has, none unless its sandbox runs.

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
        """Return the hooks the project has now, none unless its sandbox runs; raises as `skills`."""
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
    """Return the command that lists the files below a directory, nothing for one not there."""
    hidden = " -o ".join(f"-name {name}" for name in _NOT_LISTED)
    return _LIST.format(folder=quote(folder), hidden=hidden, limit=MAX_LISTED)


def check_ref(ref: str | None) -> None:
    """Raise BadRequest for what git would take for an option, or could never be a ref."""
    if ref is None:
        return
    if not ref or ref.startswith("-") or not ref.isprintable() or " " in ref:
        raise BadRequest("`ref` should be the name of a branch, a tag or a commit")


def locate(path: str, *, project: str, root: str, conversation_id: str) -> str:
    """Return the absolute path of a file in a sandbox with its projects below a root.

    A relative one is below the project. One below the usual root is below the project too,
    where projects are elsewhere.
    """
    if not path.startswith("/"):
        return f"{project}/{path}" if project else path
    is_usual = path == USUAL_ROOT or path.startswith(f"{USUAL_ROOT}/")
    if not is_usual or not project or root.startswith(_CONTAINER_ROOT):
        return path
    return _relocate(path.removeprefix(USUAL_ROOT), project, conversation_id)


def _relocate(rest: str, project: str, conversation_id: str) -> str:
    """Put what is behind the usual root behind the project's.

    Clients write the conversation's id or the repository's name before it, or neither.
    """
    for name in (conversation_id, project.rsplit("/", 1)[-1]):
        if rest == f"/{name}" or rest.startswith(f"/{name}/"):
            rest = rest.removeprefix(f"/{name}")
    return project + rest


def is_inside(path: str, *roots: str) -> bool:
    """Whether an absolute path is one of the roots or below one, whatever dots are in it."""
    plain = normpath(path)
    return any(root and (plain == root or plain.startswith(f"{root}/")) for root in roots)


def _locate(path: str, view: ConversationView) -> str:
    """Return where a file is; raises NotFound for one outside of the sandbox's workspace.

    Where the sandbox is only processes, the server's own files are in the same file system.
    """
    project = view.conversation.working_dir.rstrip("/")
    root = view.sandbox.working_dir.rstrip("/") if view.sandbox else ""
    found = locate(path, project=project, root=root, conversation_id=view.conversation.id)
    if not is_inside(found, project, root):
        raise NotFound("The path is outside of the workspace")
    return normpath(found)
