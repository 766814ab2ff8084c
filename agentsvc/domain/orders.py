"""Requests to start or change a conversation, independent of the API generation.

Both API generations convert their requests to `StartOrder`; the core does not know their field names.
No I/O.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from agentsvc.base import Secret
from agentsvc.domain.mcp import McpConfig


class Provider(StrEnum):
    """A git hosting service."""

    GITHUB = "github"
    """GitHub"""
    GITLAB = "gitlab"
    """GitLab"""
    BITBUCKET = "bitbucket"
    """Bitbucket Cloud"""
    BITBUCKET_DATA_CENTER = "bitbucket_data_center"
    """Bitbucket Data Center"""
    FORGEJO = "forgejo"
    """Forgejo, also Gitea and Codeberg"""
    AZURE_DEVOPS = "azure_devops"
    """Azure DevOps"""
    ENTERPRISE_SSO = "enterprise_sso"
    """Supported by name only"""


class TaskType(StrEnum):
    """Kinds of work suggested by records of a git provider."""

    MERGE_CONFLICTS = "MERGE_CONFLICTS"
    FAILING_CHECKS = "FAILING_CHECKS"
    UNRESOLVED_COMMENTS = "UNRESOLVED_COMMENTS"
    OPEN_ISSUE = "OPEN_ISSUE"
    OPEN_PR = "OPEN_PR"
    CREATE_MICROAGENT = "CREATE_MICROAGENT"


class Trigger(StrEnum):
    """The origin of a conversation."""

    RESOLVER = "resolver"
    GUI = "gui"
    SUGGESTED_TASK = "suggested_task"
    OPENHANDS_API = "openhands_api"
    SLACK = "slack"
    MICROAGENT_MANAGEMENT = "microagent_management"
    JIRA = "jira"
    JIRA_DC = "jira_dc"
    LINEAR = "linear"
    BITBUCKET = "bitbucket"
    AUTOMATION = "automation"


class AgentType(StrEnum):
    """The role of the agent: to do the work, or only to plan it."""

    DEFAULT = "default"
    """Does the work"""
    PLAN = "plan"
    """Reads, and writes a plan into `PLAN.md`"""


class ContentKind(StrEnum):
    """The kind of a part of a message."""

    TEXT = "text"
    IMAGE = "image"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message: a text, or images by http(s) or data URL."""

    kind: ContentKind
    text: str = ""
    image_urls: tuple[str, ...] = ()
    cache_prompt: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message in a conversation."""

    role: str = "user"
    content: tuple[Content, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the message has neither text nor images."""
        return not any(part.text.strip() or part.image_urls for part in self.content)


def message_of(text: str, image_urls: Sequence[str] = ()) -> Message:
    """Return a user's message, with a part for the text and one for the images, unless empty."""
    content: list[Content] = []
    if text:
        content.append(Content(kind=ContentKind.TEXT, text=text))
    if image_urls:
        content.append(Content(kind=ContentKind.IMAGE, image_urls=tuple(image_urls)))
    return Message(content=tuple(content))


class SuggestedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of work found at a git provider; it becomes the first message."""

    provider: Provider
    task_type: TaskType
    repo: str
    issue_number: int
    title: str


class AgentPlugin(msgspec.Struct, frozen=True, kw_only=True):
    """A plugin the agent server loads for one conversation."""

    source: str
    ref: str | None = None
    repo_path: str | None = None
    parameters: dict[str, Any] | None = None


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's use of a tool."""

    tool: str
    arguments: dict[str, Any] = {}


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a recorded conversation: a message of the user, or a turn of the agent.

    In a turn the agent writes a text, uses tools, or both.
    """

    message: Message | None = None
    text: str = ""
    uses: tuple[ToolUse, ...] = ()

    @property
    def ends_run(self) -> bool:
        """Whether the agent waits for the user after this turn."""
        return self.message is None and (
            not self.uses or any(use.tool == "finish" for use in self.uses)
        )


class WhenFull(StrEnum):
    """What to do when the maximum number of sandboxes is running."""

    REJECT = "reject"
    """Refuse the request, which may be retried."""
    QUEUE = "queue"
    """Let the request wait for its turn."""
    PAUSE_IDLE = "pause_idle"
    """Pause the sandbox that has been idle longest; refuse the request if none is idle."""


class CopySource(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox from whose files a conversation starts, as a copy."""

    sandbox_id: str
    backend: str
    working_dir: str
    """The directory of the project in the sandbox."""
    directory: str
    """The same, relative to the directory in which its agent works; empty if that is the same."""
    base: str = ""
    """The image in which the sandbox runs instead of its spec's."""


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a caller may choose when starting a conversation; all of it is optional.

    `conversation_id` is 32 hex digits; `alias` is the caller's own name for the conversation if that is
    no UUID. `mcp_config` replaces that of the settings.
    """

    sandbox_id: str | None = None
    spec_id: str | None = None
    conversation_id: str | None = None
    alias: str | None = None
    initial_message: Message | None = None
    system_message_suffix: str | None = None
    llm_model: str | None = None
    llm_profile: str | None = None
    """The name of a saved model of the user, which is read when the conversation starts."""
    repository: str | None = None
    branch: str | None = None
    provider: Provider | None = None
    suggested_task: SuggestedTask | None = None
    title: str | None = None
    trigger: Trigger | None = None
    pr_number: tuple[int, ...] = ()
    parent_conversation_id: str | None = None
    agent_type: AgentType = AgentType.DEFAULT
    public: bool | None = None
    plugins: tuple[AgentPlugin, ...] = ()
    secrets: dict[str, Secret] = {}
    mcp_config: McpConfig | None = None
    settings_required: bool = False
    archive_id: str | None = None
    """The archive to restore into the workspace."""
    copied: CopySource | None = None
    """The sandbox to copy the files from."""
    environment_id: str | None = None
    """The prepared environment to copy the files from, `none` for none; None for that of the
    repository."""
    fork_of: str | None = None
    """The conversation that this one forks from, with its history."""
    fork_until: int | None = None
    """The number of the last event of that history; None for all of it."""
    earlier: tuple["StartOrder", ...] = ()
    """The orders of the conversations behind a fork whose secrets may be in its history."""
    when_full: WhenFull | None = None
    """None for the server's configuration."""
    max_budget: float | None = None
    """US dollars at which the run is stopped; None for the settings, as in the next field."""
    max_iterations: int | None = None
    withholds_secrets: bool = False
    """Whether the conversation gets a sandbox of its own without any stored secrets of its user. The
    server itself transfers the repository."""
    commit: str | None = None
    """The commit that the server transfers and checks out; required with `withholds_secrets`."""
    compared_to: str | None = None
    """The commit of the branch to compare it with; None for the commit itself."""
    is_alone: bool = False
    """Whether the conversation gets a sandbox of its own, whatever the settings say about sharing."""
    needs_lent_model: bool = False
    """Whether the start fails if the key of its model would have to be in the sandbox."""
    replay: tuple[RecordedStep, ...] = ()
    """The steps to replay before the initial message, and before the model continues."""


class StartStatus(StrEnum):
    """The progress of a start; the last two are final."""

    WORKING = "WORKING"
    """The request was accepted"""
    WAITING_FOR_SANDBOX = "WAITING_FOR_SANDBOX"
    """The sandbox is chosen, and is starting or resuming"""
    PREPARING_REPOSITORY = "PREPARING_REPOSITORY"
    """The repository is being cloned"""
    RUNNING_SETUP_SCRIPT = "RUNNING_SETUP_SCRIPT"
    """`.openhands/setup.sh` of the repository is running"""
    SETTING_UP_GIT_HOOKS = "SETTING_UP_GIT_HOOKS"
    """`.openhands/pre-commit.sh` of the repository is being set up"""
    SETTING_UP_SKILLS = "SETTING_UP_SKILLS"
    """Skills and hooks are being loaded"""
    STARTING_CONVERSATION = "STARTING_CONVERSATION"
    """The agent server is starting the conversation"""
    READY = "READY"
    """The conversation is ready"""
    ERROR = "ERROR"
    """The start has failed; `detail` says why"""

    @property
    def is_final(self) -> bool:
        """Whether the start has ended."""
        return self in (StartStatus.READY, StartStatus.ERROR)


class StartSort(StrEnum):
    """Sort orders of start tasks."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"


class ConversationSort(StrEnum):
    """Sort orders of conversations."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"
    TITLE = "TITLE"
    TITLE_DESC = "TITLE_DESC"


class ExecutionStatus(StrEnum):
    """The state of a conversation's agent."""

    IDLE = "idle"
    """Waits for a message"""
    RUNNING = "running"
    """Works"""
    PAUSED = "paused"
    """Is paused, and resumes on request"""
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    """Asks for confirmation of an action"""
    FINISHED = "finished"
    """Has finished its task"""
    ERROR = "error"
    """Has failed; the last events say why"""
    STUCK = "stuck"
    """Has repeated itself and was stopped"""
    DELETING = "deleting"
    """The conversation is being deleted"""
