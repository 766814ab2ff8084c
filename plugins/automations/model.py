"""Types of automations and their runs, in the database and in the API."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from agentsvc.base import NO_CONTROL, matching, stated
from agentsvc.extension.conversations import PROFILE_PATTERN, Provider, SentBranch, SentRepository

LONGEST_PROMPT: Final = 50_000
_YEAR_SECONDS: Final = 366 * 86400


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The repository that a run works on."""

    url: SentRepository
    """Repository to clone: `owner/name`, or a URL"""
    ref: SentBranch | None = None
    """Branch to check out; null: the default branch"""
    provider: Provider | None = None
    """Git host of the repository; null: a host that the user has a token for and that has the repository"""


type Name = Annotated[
    str, matching(NO_CONTROL, "without control characters", min_length=1, max_length=500)
]
type Prompt = Annotated[str, Meta(min_length=1, max_length=LONGEST_PROMPT)]
type ProfileName = Annotated[
    str, matching(PROFILE_PATTERN, "of 1 to 64 letters, digits, `.`, `_` and `-`")
]
type Repositories = Annotated[list[Repository], Meta(max_length=1)]
type EventKeys = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=50)
]
type Conditions = Annotated[
    dict[Annotated[str, Meta(min_length=1, max_length=200)], Annotated[str, Meta(max_length=1000)]],
    Meta(max_length=20),
]
type Label = Annotated[
    str, matching(NO_CONTROL, "without control characters", min_length=1, max_length=100)
]
type Account = Annotated[
    str,
    matching(
        r"\A[A-Za-z0-9_.-]{1,100}(?:\[bot\])?\Z",
        "of 1 to 100 letters, digits, `.`, `_` and `-`, optionally followed by `[bot]`",
    ),
]


class CronTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cron"):
    """Starts runs on a cron schedule."""

    schedule: Annotated[str, Meta(min_length=1, max_length=200)]
    """Cron expression of five fields, such as `0 9 * * 1-5`, or `@daily`"""
    timezone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    """IANA name of the time zone, such as `Europe/Berlin`"""


class OnceTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="once"):
    """Starts one run."""

    at: Annotated[str, Meta(max_length=64), stated(format="date-time")]
    """When, in ISO 8601; without an offset it is UTC"""


class WebhookTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="webhook"):
    """Starts a run for each delivery to `events_path` that is signed with the automation's secret."""

    on: EventKeys | None = None
    """Kinds of events to accept, such as `issues.opened` or `pull_request.*`: the event named by the
    sender's header, followed by a dot and the payload's `action`; without such a header, the payload's
    `type`. Null: all"""
    when: Conditions | None = None
    """Required values of parts of the payload, by names as in the prompt, such as `label.name`.
    Null: any"""


class ManualTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="manual"):
    """Starts runs by `dispatch` only, which works with all triggers except `git`."""


class GitSubject(StrEnum):
    """The events of a git host that start runs."""

    REQUEST = "request"
    """An issue that was labelled, or a mention, by somebody with write access"""
    ISSUE = "issue"
    """Each issue that is opened, whoever opens it; commits are not kept"""
    PULL_REQUEST = "pull_request"
    """Each pull request that is opened, whoever opens it; commits are not kept"""


class GitTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="git"):
    """Starts a run for an issue or a pull request, and posts the agent's last message there as a comment.

    If somebody asked for it (`on` is `request`), the agent commits and the server opens a pull request.
    `repos` names the repository, with `provider` `github`, `gitlab`, `forgejo` or `bitbucket`.
    """

    on: GitSubject = GitSubject.REQUEST
    """Event that starts a run; `label` and `mention` apply to `request` only"""
    label: Label | None = "agent"
    """Label that starts a run for an issue; null: labels are ignored"""
    mention: Account | None = None
    """Name of the account whose mention starts a run, without `@`; for a GitHub App with or without `[bot]`.
    Null: mentions are ignored"""
    poll_seconds: Annotated[int, Meta(ge=10, le=86400)] | None = None
    """Interval at which the host is polled, for servers it cannot reach; null: deliveries only"""
    workflows: bool = False
    """Whether commits may change what the host runs automatically, such as `.github/workflows`"""


type Trigger = CronTrigger | OnceTrigger | WebhookTrigger | ManualTrigger | GitTrigger


class Concurrency(StrEnum):
    """The rule for a run that is due while another run of the same automation is in progress."""

    SKIP = "skip"
    """It is skipped"""
    QUEUE = "queue"
    """It waits for the other run to end"""
    REPLACE = "replace"
    """The other run is cancelled"""


class Missed(StrEnum):
    """The rule for due times that passed while the server was down."""

    SKIP = "skip"
    """They are skipped"""
    ONCE = "once"
    """One run for all missed times"""
    ALL = "all"
    """A run for each, up to `most_missed`"""


class State(StrEnum):
    """The state of an automation, in the terms of the published service."""

    ACTIVE = "ACTIVE"
    """It is enabled"""
    INACTIVE = "INACTIVE"
    """It is disabled"""


class RunStatus(StrEnum):
    """The status of a run."""

    PENDING = "PENDING"
    """It is due, or waits for its turn or for a retry"""
    RUNNING = "RUNNING"
    """Its conversation was started"""
    COMPLETED = "COMPLETED"
    """The agent has finished its work"""
    FAILED = "FAILED"
    """It has failed; `error_detail` says why"""
    CANCELLED = "CANCELLED"
    """It was cancelled, or its conversation deleted"""
    SKIPPED = "SKIPPED"
    """It was due but not started; `error_detail` says why"""


class Source(StrEnum):
    """The source of a run."""

    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    MANUAL = "manual"
    RETRY = "retry"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """The task of an automation, its trigger and its limits."""

    name: Name
    """Name of the automation, and title of its conversations"""
    description: Annotated[str, Meta(max_length=2000)] | None = None
    """Purpose of the automation, for display only; null: none"""
    prompt: Prompt | None = None
    """Prompt for the agent; null if the task is a command. `{{payload}}` is replaced by the payload of the webhook,
    `{{payload.issue.title}}` by a part of it, and `{{due_at}}` by the time the run was due or was postponed to. Parts
    of the payload are marked as data"""
    command: Prompt | None = None
    """Shell command to run in the sandbox instead of an agent, in the repository if there is one; null: an
    agent works"""
    trigger: Trigger
    """Trigger of runs"""
    repos: Repositories | None = None
    """Repository to clone, at most one; null: an empty workspace"""
    pull_request: bool = False
    """Whether the server pushes the agent's commits and opens a draft pull request, one at a time: while
    the last one is open, runs are skipped. The sandbox then contains no secret of the user, except the key of a model
    that the server cannot call itself. A trigger `git` opens pull requests without this"""
    model: ProfileName | None = None
    """Name of a saved language model; null: the one of the settings"""
    timeout: Annotated[int, Meta(ge=1, le=_YEAR_SECONDS)] | None = None
    """Time limit for the agent's work, in seconds; null: no limit"""
    max_budget: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """US dollars after which a run ends; null: the limit of the settings"""
    max_iterations: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Turns of the agent after which a run ends; null: the limit of the settings"""
    keep_alive: bool | None = None
    """What happens to the sandbox after a run: true leaves it to the server's idle rules, false deletes
    it, null pauses it. A sandbox that other conversations share is not touched"""
    concurrency: Concurrency = Concurrency.QUEUE
    """What happens to a run that is due while another run is in progress"""
    missed: Missed = Missed.ONCE
    """What happens to due times that passed while the server was down"""
    most_missed: Annotated[int, Meta(ge=1, le=100)] = 10
    """Maximum number of missed runs to make up for if `missed` is `all`"""
    retries: Annotated[int, Meta(ge=0, le=10)] = 0
    """How many times a failed run is retried"""
    retry_seconds: Annotated[int, Meta(ge=1, le=86400)] = 60
    """Seconds until the first retry; doubled for each further one"""
    max_failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Number of runs in a row, each counted with its retries as one, whose failure disables the automation"""

    @property
    def repository(self) -> Repository | None:
        """The repository to clone, if there is one."""
        return self.repos[0] if self.repos else None

    @property
    def host(self) -> Provider:
        """The git host of the repository."""
        return (self.repository.provider if self.repository else None) or Provider.GITHUB

    @property
    def is_at_host(self) -> bool:
        """Whether the server publishes the result of a run at a git host."""
        return self.pull_request or isinstance(self.trigger, GitTrigger)


class Automation(msgspec.Struct, frozen=True, kw_only=True):
    """A stored automation; `failures` counts failed runs in a row."""

    id: str
    user_id: str
    definition: Definition
    is_enabled: bool
    created_at: datetime
    updated_at: datetime
    disabled_reason: str = ""
    failures: int = 0
    next_at: datetime | None = None
    last_triggered_at: datetime | None = None

    @property
    def repository_name(self) -> str:
        """The name of its repository, empty without one."""
        return self.definition.repository.url if self.definition.repository else ""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A stored run; `key` identifies its due time or event within the automation."""

    id: str
    automation_id: str
    user_id: str
    key: str
    source: Source
    due_at: datetime
    created_at: datetime
    status: RunStatus = RunStatus.PENDING
    attempt: int = 1
    conversation_id: str | None = None
    error_detail: str = ""
    result: str = ""
    cost: float | None = None
    started_at: datetime | None = None
    timeout_at: datetime | None = None
    """When a running one is stopped; for a pending one, until when calls to its git host are retried."""
    completed_at: datetime | None = None
    is_settled: bool = True
    """Whether the sandbox needs no further handling after the run."""
    number: int = 0


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """What runs publish at a host for one issue or task: a branch, a comment, a pull request."""

    id: str
    """Id of the run that started it."""
    automation_id: str
    user_id: str
    conversation_id: str
    issue: str
    """Number of its issue or pull request; empty if there is none."""
    title: str
    base: str
    """The branch that it starts from; the target of a pull request."""
    commit: str
    """The commit at which the agent starts."""
    comment_id: str | None = None
    """Id of the server's comment on the issue; None before it is written, empty if there is to be none."""
    shown: str = ""
    """Hash of the comment's current text."""
    pull: str | None = None
    pull_url: str = ""
    head: str = ""
    """The last commit that was pushed."""
    published: str = ""
    """Id of the run whose commits were pushed last."""
    told: tuple[str, ...] = ()
    """Keys of the comments that the agent has got."""
    repairs: int = 0
    """How many times the agent was told about failed checks."""
    is_open: bool = True
    is_pull: bool = False
    """Whether it is about somebody else's pull request."""
    is_answer: bool = False
    """Whether it only comments; nothing is pushed."""

    @property
    def is_followed(self) -> bool:
        """Whether later events at the host continue its conversation."""
        return bool(self.issue) and not self.is_answer

    @property
    def branch(self) -> str:
        """The only branch that the server pushes."""
        about = f"issue-{self.issue}" if self.issue else "run"
        return f"agentsvc/{about}-{self.id[:8]}"
