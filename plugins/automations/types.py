"""What the routes of automations read and answer, named as the published automation service has it."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agentsvc.base import ShownSecret, stored_or_none, view_of
from agentsvc.extension.web import Time

from .model import (
    Automation,
    Concurrency,
    Definition,
    Description,
    Dollars,
    Iterations,
    Missed,
    MostFailures,
    MostMissed,
    Name,
    ProfileName,
    Prompt,
    Repositories,
    Retries,
    RetrySeconds,
    Run,
    RunStatus,
    Source,
    State,
    Timeout,
    Trigger,
)

MOST_LISTED: Final = 100
_SWITCHES: Final = ("enabled", "state")

type Listed = Annotated[int, Meta(ge=1, le=MOST_LISTED)]
type Offset = Annotated[int, Meta(ge=0, le=1_000_000)]


class AutomationOrder(Definition, frozen=True, kw_only=True):
    """A new automation."""

    enabled: bool = True
    """Whether anything but `dispatch` starts runs"""
    state: State | None = None
    """The same; null: as `enabled` says"""

    @property
    def is_enabled(self) -> bool:
        """Whether it is to be enabled."""
        return self.enabled if self.state is None else self.state is State.ACTIVE


class AutomationUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of an automation; what is not sent stays."""

    name: Name | UnsetType = UNSET
    """What it is called; left out: unchanged"""
    description: Description | UnsetType | None = UNSET
    """What it is for; null: nothing, left out: unchanged"""
    prompt: Prompt | UnsetType | None = UNSET
    """What the agent is told; null: nothing, left out: unchanged"""
    command: Prompt | UnsetType | None = UNSET
    """What a shell runs in the place of an agent; null: an agent works, left out: unchanged"""
    trigger: Trigger | UnsetType = UNSET
    """What starts runs; left out: unchanged. A webhook that is new has no secret until one is made
    with `rotate-secret`"""
    repos: Repositories | UnsetType | None = UNSET
    """Repository to clone, at most one; null: none, left out: unchanged"""
    pull_request: bool | UnsetType = UNSET
    """Whether the server opens a draft pull request of what the agent has committed; left out: unchanged"""
    model: ProfileName | UnsetType | None = UNSET
    """Name of a saved language model; null: that of the settings, left out: unchanged"""
    timeout: Timeout | UnsetType | None = UNSET
    """Seconds an agent may work; null: no limit, left out: unchanged"""
    max_budget: Dollars | UnsetType | None = UNSET
    """US dollars after which a run ends; null: as the settings say, left out: unchanged"""
    max_iterations: Iterations | UnsetType | None = UNSET
    """Turns of the agent after which a run ends; null: as the settings say, left out: unchanged"""
    keep_alive: bool | UnsetType | None = UNSET
    """What becomes of the sandbox: true leaves it, false deletes it, null pauses it; left out:
    unchanged"""
    concurrency: Concurrency | UnsetType = UNSET
    """What becomes of a run that is due while another one goes on; left out: unchanged"""
    missed: Missed | UnsetType = UNSET
    """What becomes of due times that passed meanwhile; left out: unchanged"""
    most_missed: MostMissed | UnsetType = UNSET
    """How many missed runs are made at most; left out: unchanged"""
    retries: Retries | UnsetType = UNSET
    """How often a run that has failed is tried again; left out: unchanged"""
    retry_seconds: RetrySeconds | UnsetType = UNSET
    """Seconds until the first further try; left out: unchanged"""
    max_failures: MostFailures | UnsetType = UNSET
    """Failed runs in a row until it is disabled; left out: unchanged"""
    enabled: bool | UnsetType = UNSET
    """Whether anything but `dispatch` starts runs; false cancels what waits. Left out: unchanged"""
    state: State | UnsetType | None = UNSET
    """The same; null or left out: as `enabled` says"""

    @property
    def is_enabled(self) -> bool | None:
        """Whether it is to be enabled, None to leave that as it is."""
        if self.state is not UNSET and self.state is not None:
            return self.state is State.ACTIVE
        return None if self.enabled is UNSET else self.enabled

    def changes(self) -> dict[str, Any]:
        """Return what was sent of the definition."""
        return {
            name: value
            for name, value in msgspec.structs.asdict(self).items()
            if value is not UNSET and name not in _SWITCHES
        }


class AutomationInfo(Definition, frozen=True, kw_only=True):
    """An automation; the secret of its webhook is not shown again."""

    id: str
    """Id of the automation, 32 hex digits"""
    enabled: bool
    """Whether anything but `dispatch` starts runs"""
    state: State
    """The same"""
    disabled_reason: str | None
    """Why the server has disabled it; null if it has not"""
    failures: int
    """How many runs have failed in a row"""
    next_run_at: Time | None
    """When it is due next, in UTC; null if it has no such time"""
    last_triggered_at: Time | None
    """When a run was last made, in UTC; null if none was"""
    events_path: str
    """Path that deliveries of its webhook are posted to"""
    created_at: Time
    updated_at: Time


class NewAutomationInfo(AutomationInfo, frozen=True, kw_only=True):
    """An automation at the only moment the secret of its webhook can be seen."""

    secret: ShownSecret | None
    """Key of the signatures of its deliveries; null where no webhook triggers it"""


class AutomationSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A new secret of the webhook of an automation."""

    secret: ShownSecret
    """Key of the signatures; it is shown here only"""


class AutomationList(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a user's automations."""

    automations: list[AutomationInfo]
    """The automations, the newest first"""
    total: int
    """How many there are"""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which part of a list to answer."""

    limit: Listed = 50
    """How many at most"""
    offset: Offset = 0
    """How many to leave out at the beginning"""


class AutomationRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an automation."""

    id: str
    """Id of the run, 32 hex digits"""
    automation_id: str
    """Id of its automation, 32 hex digits"""
    status: RunStatus
    """How far it is"""
    trigger_source: Source
    """What made it: the schedule, a delivery, a user, or the failure of another"""
    attempt: int
    """Which try this is, counted from 1"""
    conversation_id: str | None
    """Conversation it became, 32 hex digits; null before"""
    error_detail: str | None
    """Why it has failed, or was not made; null if there is nothing to say"""
    result: str | None
    """What the agent has said last, at most 2000 characters; null if nothing"""
    cost: float | None
    """US dollars it has cost; null before its end"""
    duration_seconds: float | None
    """Seconds from its begin to its end; null before"""
    due_at: Time
    """When it was due, in UTC, or is to be tried"""
    created_at: Time
    started_at: Time | None
    """When its conversation was started, in UTC; null before"""
    completed_at: Time | None
    """When it ended, in UTC; null before"""


class AutomationRunList(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of an automation."""

    runs: list[AutomationRun]
    """The runs, the newest first"""
    total: int
    """How many there are"""
    status_counts: dict[str, int]
    """How many there are of each status"""


class DeliveryReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a delivery."""

    received: bool
    """Always true: it is signed, and stored where it makes a run"""
    matched: int
    """1, or 0 where the automation is disabled, or wants no deliveries of this kind; of a GitHub App, for
    how many automations it counts"""
    runs_created: list[str]
    """Ids of the runs it has made: one, or none where it came before; with a trigger `git` one for each
    event that is new"""


def to_definition(order: AutomationOrder) -> Definition:
    """Return what is to be stored of a new automation."""
    given = msgspec.structs.asdict(order).items()
    return Definition(**{name: value for name, value in given if name not in _SWITCHES})


def from_automation(automation: Automation, prefix: str) -> AutomationInfo:
    """Return what is shown of an automation."""
    return view_of(
        AutomationInfo,
        automation,
        **msgspec.structs.asdict(automation.definition),
        enabled=automation.is_enabled,
        state=State.ACTIVE if automation.is_enabled else State.INACTIVE,
        disabled_reason=automation.disabled_reason or None,
        next_run_at=stored_or_none(automation.next_at),
        events_path=f"{prefix}/events/{automation.id}",
    )


def from_run(run: Run) -> AutomationRun:
    """Return what is shown of a run."""
    duration = None
    if run.started_at is not None and run.completed_at is not None:
        # The clock may have been put back.
        duration = max(0.0, round((run.completed_at - run.started_at).total_seconds(), 3))
    return view_of(
        AutomationRun,
        run,
        trigger_source=run.source,
        error_detail=run.error_detail or None,
        result=run.result or None,
        duration_seconds=duration,
    )
