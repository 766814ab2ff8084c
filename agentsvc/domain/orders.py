"""Requests to start or change a conversation, independent of the API generation.

Both API generations map their requests onto `StartOrder`; the core knows no wire name. Nothing
here does I/O.
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
    """Known by name only"""


class TaskType(StrEnum):
    """The kinds of work a git provider's records suggest."""

    MERGE_CONFLICTS = "MERGE_CONFLICTS"
    FAILING_CHECKS = "FAILING_CHECKS"
    UNRESOLVED_COMMENTS = "UNRESOLVED_COMMENTS"
    OPEN_ISSUE = "OPEN_ISSUE"
    OPEN_PR = "OPEN_PR"
    CREATE_MICROAGENT = "CREATE_MICROAGENT"


class Trigger(StrEnum):
    """What made somebody start a conversation."""

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
    """The role the agent plays: doing the work, or only planning it."""

    DEFAULT = "default"
    """It does the work"""
    PLAN = "plan"
    """It reads, and writes a plan into `PLAN.md`"""


class ContentKind(StrEnum):
    """What a part of a message is."""

    TEXT = "text"
    IMAGE = "image"


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a message: a text, or images by http(s) or data URL."""

    kind: ContentKind
    text: str = ""
    image_urls: tuple[str, ...] = ()
    cache_prompt: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says in a conversation."""

    role: str = "user"
    content: tuple[Content, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has neither a text nor an image."""
        return not any(part.text.strip() or part.image_urls for part in self.content)


def message_of(text: str, image_urls: Sequence[str] = ()) -> Message:
    """Return what a user says: a part for the text and one for the images, as far as there are any."""
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
    """What an agent did with a tool."""

    tool: str
    arguments: dict[str, Any] = {}


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a recorded conversation: what the user said, or else a turn of the agent.

    In a turn the agent says something, uses tools, or both.
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
    """What is to happen where as many sandboxes run as may."""

    REJECT = "reject"
    """Nothing: the request is refused and may be tried again."""
    QUEUE = "queue"
    """It waits for its turn."""
    PAUSE_IDLE = "pause_idle"
    """The sandbox idle longest is paused for it; where none is idle it is refused."""


class CopySource(msgspec.Struct, frozen=True, kw_only=True):
    """A sandbox with a copy of whose files a conversation begins."""

    sandbox_id: str
    backend: str
    working_dir: str
    """Where the project is in it."""
    directory: str
    """The same, below the directory in which the sandbox's agent works; empty for that itself."""
    base: str = ""
    """The image in which it runs in the place of its spec's."""


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a caller may fix when a conversation is started; all of it is optional.

    `conversation_id` is 32 hex digits; `alias` is the caller's own name for the conversation
    where it gave one that is no UUID. `mcp_config` replaces that of the settings.
    """

    sandbox_id: str | None = None
    spec_id: str | None = None
    conversation_id: str | None = None
    alias: str | None = None
    initial_message: Message | None = None
    system_message_suffix: str | None = None
    llm_model: str | None = None
    llm_profile: str | None = None
    """A model the user has saved; it is read when the conversation starts."""
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
    """The archive whose files the workspace begins with."""
    copied: CopySource | None = None
    """The sandbox whose files its own begins with."""
    environment_id: str | None = None
    """The prepared environment a copy of which it begins with, `none` for none; None for that of its
    repository."""
    fork_of: str | None = None
    """The conversation whose history this one has got, and goes on with."""
    fork_until: int | None = None
    """The number of the last event of that history; None for all of it."""
    earlier: tuple["StartOrder", ...] = ()
    """The secrets that may be in that history: of each order behind it that had any."""
    when_full: WhenFull | None = None
    """None for what the server is configured to do."""
    max_budget: float | None = None
    """US dollars after which the run ends; None for what the settings say, as the next one."""
    max_iterations: int | None = None
    withholds_secrets: bool = False
    """It gets a sandbox of its own, into which comes nothing its user has stored. The server brings
    the repository in itself."""
    commit: str | None = None
    """What of the repository is checked out then; needed where that is withheld."""
    compared_to: str | None = None
    """The commit of the branch that it is to be compared with; None for itself."""
    is_alone: bool = False
    """It gets a sandbox of its own, whatever the settings say of sharing one."""
    needs_lent_model: bool = False
    """It does not start where the key of its model would be in the sandbox."""
    replay: tuple[RecordedStep, ...] = ()
    """What is done again before the model goes on, and before the initial message is said."""


class StartStatus(StrEnum):
    """How far the start of a conversation has come; the last two are final."""

    WORKING = "WORKING"
    """The request was taken"""
    WAITING_FOR_SANDBOX = "WAITING_FOR_SANDBOX"
    """The sandbox is chosen, and starts or resumes"""
    PREPARING_REPOSITORY = "PREPARING_REPOSITORY"
    """The repository is cloned"""
    RUNNING_SETUP_SCRIPT = "RUNNING_SETUP_SCRIPT"
    """`.openhands/setup.sh` of the repository runs"""
    SETTING_UP_GIT_HOOKS = "SETTING_UP_GIT_HOOKS"
    """`.openhands/pre-commit.sh` of the repository is set up"""
    SETTING_UP_SKILLS = "SETTING_UP_SKILLS"
    """Skills and hooks are loaded"""
    STARTING_CONVERSATION = "STARTING_CONVERSATION"
    """The agent server starts the conversation"""
    READY = "READY"
    """The conversation can be used"""
    ERROR = "ERROR"
    """The start has failed; `detail` says why"""

    @property
    def is_final(self) -> bool:
        """Whether the start is over."""
        return self in (StartStatus.READY, StartStatus.ERROR)


class StartSort(StrEnum):
    """The orders in which start tasks can be listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"


class ConversationSort(StrEnum):
    """The orders in which conversations can be listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"
    TITLE = "TITLE"
    TITLE_DESC = "TITLE_DESC"


class ExecutionStatus(StrEnum):
    """What the agent of a conversation is doing."""

    IDLE = "idle"
    """It waits for a message"""
    RUNNING = "running"
    """It works"""
    PAUSED = "paused"
    """It was paused, and goes on when told to"""
    WAITING_FOR_CONFIRMATION = "waiting_for_confirmation"
    """It asks whether it may act"""
    FINISHED = "finished"
    """It has done its work"""
    ERROR = "error"
    """It has failed; the last events say why"""
    STUCK = "stuck"
    """It has repeated itself and was stopped"""
    DELETING = "deleting"
    """The conversation is being deleted"""
