"""Automations and their runs, as they are stored and as their API has them."""

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
    """What a run works on."""

    url: SentRepository
    """Repository to clone: `owner/name`, or a URL"""
    ref: SentBranch | None = None
    """Branch to check out; null: the default branch"""
    provider: Provider | None = None
    """Where the repository is; null: where the user has a token for and it is found"""


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
        "of 1 to 100 letters, digits, `.`, `_` and `-`, and `[bot]` behind them or not",
    ),
]


class CronTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cron"):
    """Starts runs at times of the clock."""

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
    """Kinds of events that count, such as `issues.opened` or `pull_request.*`: the event that the
    sender's header names, with the `action` of the payload behind a dot; or else the payload's
    `type`. Null: all"""
    when: Conditions | None = None
    """Values that parts of the payload have to have, by names as in the prompt, such as `label.name`.
    Null: any"""


class ManualTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="manual"):
    """Starts runs by `dispatch` only, which the others take, too."""


class GitSubject(StrEnum):
    """What at a git host starts runs."""

    REQUEST = "request"
    """An issue that somebody who may write has labelled, or a mention by such a person"""
    ISSUE = "issue"
    """Each issue that is opened, by whomever; what is committed is not kept"""
    PULL_REQUEST = "pull_request"
    """Each pull request that is opened, by whomever; what is committed is not kept"""


class GitTrigger(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="git"):
    """Starts a run for an issue or a pull request, below which the agent's last words are written.

    Where somebody asks for it (`on` is `request`), the agent commits and the server opens a pull request.
    `repos` names the repository, with `provider` `github`, `gitlab`, `forgejo` or `bitbucket`.
    """

    on: GitSubject = GitSubject.REQUEST
    """What starts a run; `label` and `mention` count with `request` only"""
    label: Label | None = "agent"
    """Label that an issue is to get; null: none does"""
    mention: Account | None = None
    """Name of the account that is to be mentioned, without `@`, of a GitHub App with or without `[bot]`;
    null: mentions count for nothing"""
    poll_seconds: Annotated[int, Meta(ge=10, le=86400)] | None = None
    """How often the host is asked, for servers it cannot reach; null: deliveries only"""
    workflows: bool = False
    """Whether what the host runs by itself, such as `.github/workflows`, may be changed"""


type Trigger = CronTrigger | OnceTrigger | WebhookTrigger | ManualTrigger | GitTrigger


class Concurrency(StrEnum):
    """What becomes of a run that is due while another one of the same automation goes on."""

    SKIP = "skip"
    """It is not made"""
    QUEUE = "queue"
    """It waits for the end of the other"""
    REPLACE = "replace"
    """The other one is cancelled"""


class Missed(StrEnum):
    """What becomes of due times that passed while the server was down."""

    SKIP = "skip"
    """Nothing"""
    ONCE = "once"
    """One run for all of them"""
    ALL = "all"
    """A run for each, up to `most_missed`"""


class State(StrEnum):
    """Whether an automation is enabled, as the published service says it."""

    ACTIVE = "ACTIVE"
    """It is enabled"""
    INACTIVE = "INACTIVE"
    """It is disabled"""


class RunStatus(StrEnum):
    """How far a run is."""

    PENDING = "PENDING"
    """It is due, or waits for its turn or for another try"""
    RUNNING = "RUNNING"
    """Its conversation was started"""
    COMPLETED = "COMPLETED"
    """The agent has done its work"""
    FAILED = "FAILED"
    """It has failed; `error_detail` says why"""
    CANCELLED = "CANCELLED"
    """It was cancelled, or its conversation deleted"""
    SKIPPED = "SKIPPED"
    """It was due and not made; `error_detail` says why"""


class Source(StrEnum):
    """What made a run."""

    SCHEDULE = "schedule"
    WEBHOOK = "webhook"
    MANUAL = "manual"
    RETRY = "retry"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What an automation does, and when."""

    name: Name
    """What it is called; conversations have it as their title"""
    description: Annotated[str, Meta(max_length=2000)] | None = None
    """What it is for, kept and shown only; null: nothing"""
    prompt: Prompt | None = None
    """What an agent is told; null where a command is the task. `{{payload}}` stands for what a webhook has sent, and
    `{{payload.issue.title}}` for a part of it; `{{due_at}}` for the time it was due, or was put
    off to. What is put in is marked as data"""
    command: Prompt | None = None
    """What a shell in the sandbox runs in the place of an agent, in the repository if there is one; null: an
    agent works"""
    trigger: Trigger
    """What starts runs"""
    repos: Repositories | None = None
    """Repository to clone, at most one; null: an empty workspace"""
    pull_request: bool = False
    """Whether the server pushes what the agent has committed and opens a draft pull request, one at a time: while
    the last one is open, runs are skipped. No secret of the user is in the sandbox then, but the key of a model
    that the server cannot ask itself. A trigger `git` does it by itself"""
    model: ProfileName | None = None
    """Name of a saved language model; null: that of the settings"""
    timeout: Annotated[int, Meta(ge=1, le=_YEAR_SECONDS)] | None = None
    """Seconds an agent may work; null: no limit"""
    max_budget: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """US dollars after which a run ends; null: as the settings say"""
    max_iterations: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Turns of the agent after which a run ends; null: as the settings say"""
    keep_alive: bool | None = None
    """What becomes of the sandbox after a run: true leaves it to the server's rules, false deletes
    it, null pauses it. One that other conversations share is left alone"""
    concurrency: Concurrency = Concurrency.QUEUE
    """What becomes of a run that is due while another one goes on"""
    missed: Missed = Missed.ONCE
    """What becomes of due times that passed while the server was down"""
    most_missed: Annotated[int, Meta(ge=1, le=100)] = 10
    """With `missed` set to `all`, how many at most"""
    retries: Annotated[int, Meta(ge=0, le=10)] = 0
    """How often a run that has failed is tried again"""
    retry_seconds: Annotated[int, Meta(ge=1, le=86400)] = 60
    """Seconds until the first further try; they double with each"""
    max_failures: Annotated[int, Meta(ge=1, le=1000)] = 5
    """Runs that fail in a row, tries counted as one, until the automation is disabled"""

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
        """Whether what comes of a run is brought to a git host by the server."""
        return self.pull_request or isinstance(self.trigger, GitTrigger)


class Automation(msgspec.Struct, frozen=True, kw_only=True):
    """An automation as it is stored; `failures` counts failed runs in a row."""

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
    """One run as it is stored; `key` names what made it, within its automation."""

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
    """When it is stopped; of one that has not begun, until when its git host is asked again."""
    completed_at: datetime | None = None
    is_settled: bool = True
    """Whether nothing is left to be done with its sandbox, once it is over."""
    number: int = 0


class WorkItem(msgspec.Struct, frozen=True, kw_only=True):
    """What a run brings to a host: a branch, a comment, a pull request; often about an issue."""

    id: str
    """That of the run that began it."""
    automation_id: str
    user_id: str
    conversation_id: str
    issue: str
    """The number of what it is about; empty for nothing at the host."""
    title: str
    base: str
    """The branch that it is for."""
    commit: str
    """What the agent has got of that."""
    comment_id: str | None = None
    """The server's comment below the issue; empty where the host takes none."""
    shown: str = ""
    """What the comment says now, as a hash."""
    pull: str | None = None
    pull_url: str = ""
    head: str = ""
    """The last commit that was pushed."""
    published: str = ""
    """The run whose work that was."""
    told: tuple[str, ...] = ()
    """The comments that the agent was told of after its beginning."""
    repairs: int = 0
    """How often it was told of failed checks."""
    is_open: bool = True
    is_pull: bool = False
    """Whether it is about a pull request of others."""
    is_answer: bool = False
    """Whether it only says something: nothing is pushed."""

    @property
    def is_followed(self) -> bool:
        """Whether what is said at the host later goes on with it."""
        return bool(self.issue) and not self.is_answer

    @property
    def branch(self) -> str:
        """The branch that the server pushes, and no other."""
        about = f"issue-{self.issue}" if self.issue else "run"
        return f"agentsvc/{about}-{self.id[:8]}"
