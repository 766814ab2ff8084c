"""Request handlers and types for automations, their runs, and their webhook deliveries.

The types have the names of the published automation service.
"""

from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from aiohttp import web
from msgspec import Meta

from agentsvc.base import (
    BodyTooLarge,
    Conflict,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    Secret,
    ShownSecret,
    copy_to,
    stored_or_none,
    view_of,
)
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Described,
    Routes,
    Scope,
    Success,
    Time,
    changes_of,
    check_extremes,
    decode,
    effect_of,
    path_id,
    read_body,
    read_changes,
)

from .model import Automation, Definition, Run, RunStatus, Source, State
from .service import Automations

PREFIX: Final = "/api/automation/v1"
MAX_LISTED: Final = 100


class AutomationOrder(Definition, frozen=True, kw_only=True):
    """A new automation."""

    enabled: bool = True
    """Whether the trigger starts runs; `dispatch` works regardless"""
    state: State | None = None
    """The same as a word, which overrides `enabled`; null: use `enabled`"""

    @property
    def is_enabled(self) -> bool:
        """Whether to enable it, by `state` or else `enabled`."""
        return self.enabled if self.state is None else self.state is State.ACTIVE


AutomationUpdate: Final = changes_of(
    AutomationOrder, "AutomationUpdate", "Changes to an automation; omitted fields stay."
)


class AutomationInfo(Definition, frozen=True, kw_only=True):
    """An automation; the secret of its webhook is not shown again."""

    id: str
    """Id of the automation, 32 hex digits"""
    enabled: bool
    """Whether the trigger starts runs; `dispatch` works regardless"""
    state: State
    """The same as a word"""
    disabled_reason: str | None
    """Why the server disabled it; null if it did not"""
    failures: int
    """How many runs have failed in a row"""
    next_run_at: Time | None
    """Next due time, in UTC; null if there is none"""
    last_triggered_at: Time | None
    """When a run was last created, in UTC; null if never"""
    events_path: str
    """Path for the deliveries of its webhook"""
    created_at: Time
    updated_at: Time


class NewAutomationInfo(AutomationInfo, frozen=True, kw_only=True):
    """A new automation, with the secret of its webhook, which is shown only here."""

    secret: ShownSecret | None
    """Secret that signs its deliveries; null if its trigger accepts none"""


class AutomationSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A new secret of the webhook of an automation."""

    secret: ShownSecret
    """Secret that signs deliveries; shown only here"""


class AutomationList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a user's automations."""

    automations: list[AutomationInfo]
    """The automations, the newest first"""
    total: int
    """How many there are"""


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The page of a list to return."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 50
    """Maximum number of items"""
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of items to skip"""


class AutomationRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of an automation."""

    id: str
    """Id of the run, 32 hex digits"""
    automation_id: str
    """Id of its automation, 32 hex digits"""
    status: RunStatus
    """Status of the run"""
    trigger_source: Source
    """Source of the run: the schedule, a delivery, a user, or the failure of another run"""
    attempt: int
    """Number of the attempt, counted from 1"""
    conversation_id: str | None
    """Id of its conversation, 32 hex digits; null before its start"""
    error_detail: str | None
    """Why it failed or was not started; null if there is no reason"""
    result: str | None
    """Last message of the agent, at most 2000 characters; null if there is none"""
    cost: float | None
    """Cost in US dollars; null before its end"""
    duration_seconds: float | None
    """Seconds from its start to its end; null before its end"""
    due_at: Time
    """When it was due, or is to be retried, in UTC"""
    created_at: Time
    started_at: Time | None
    """When its conversation was started, in UTC; null before its start"""
    completed_at: Time | None
    """When it ended, in UTC; null before its end"""


class AutomationRunList(msgspec.Struct, frozen=True, kw_only=True):
    """A page of an automation's runs."""

    runs: list[AutomationRun]
    """The runs, the newest first"""
    total: int
    """How many there are"""
    status_counts: dict[str, int]
    """Number of runs by status"""


class DeliveryReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a delivery."""

    received: bool
    """Always true: the signature is valid, and any run that it starts is stored"""
    matched: int
    """1, or 0 if the automation is disabled or does not accept deliveries of this kind; for a GitHub App,
    the number of automations that accept it"""
    runs_created: list[str]
    """Ids of the runs it created: one, or none if the delivery is a repetition; with a trigger `git` one
    for each new event"""


def from_automation(automation: Automation) -> AutomationInfo:
    """Return the API's view of an automation."""
    return view_of(
        AutomationInfo,
        automation,
        **msgspec.structs.asdict(automation.definition),
        enabled=automation.is_enabled,
        state=State.ACTIVE if automation.is_enabled else State.INACTIVE,
        disabled_reason=automation.disabled_reason or None,
        next_run_at=stored_or_none(automation.next_at),
        events_path=f"{PREFIX}/events/{automation.id}",
    )


def from_run(run: Run) -> AutomationRun:
    """Return the API's view of a run."""
    duration = None
    if run.started_at is not None and run.completed_at is not None:
        # The clock may have been set back.
        duration = max(0.0, round((run.completed_at - run.started_at).total_seconds(), 3))
    return view_of(
        AutomationRun,
        run,
        trigger_source=run.source,
        error_detail=run.error_detail or None,
        result=run.result or None,
        duration_seconds=duration,
    )


LARGEST_DELIVERY: Final = 256 * 1024

AUTOMATIONS: Final[web.AppKey[Automations]] = web.AppKey("automations")

_ONE: Final = "/{automation_id}"
_PAYLOAD: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()


ROUTES: Final = Routes()


def _with_secret(made: tuple[Automation, Secret | None]) -> NewAutomationInfo:
    automation, secret = made
    shown = msgspec.structs.asdict(from_automation(automation))
    return NewAutomationInfo(**shown, secret=secret.reveal() if secret else None)


def _shown_secret(secret: Secret) -> AutomationSecret:
    return AutomationSecret(secret=secret.reveal())


_CREATION: Final[Described] = {
    "effect": effect_of(tuple, _with_secret, status=HTTPStatus.CREATED),
    "errors": (Conflict,),
    "example": {
        "name": "Nightly dependency check",
        "prompt": "Update the dependencies, run the tests, and say what has changed.",
        "trigger": {"type": "cron", "schedule": "0 3 * * 1-5", "timezone": "Europe/Berlin"},
        "repos": [{"url": "octocat/hello-world"}],
    },
}


@ROUTES.add("GET", "")
async def get_automations(request: web.Request, query: ListQuery) -> AutomationList:
    """List your automations.

    Only your own automations are listed, the newest first.
    """
    found, total = await request.app[AUTOMATIONS].list_of(
        request[PRINCIPAL].user_id, limit=query.limit, offset=query.offset
    )
    shown = [from_automation(one) for one in found]
    return AutomationList(automations=shown, total=total)


@ROUTES.add(
    "POST",
    "/preset/prompt",
    summary="Create an automation, at the path of the published service",
    **_CREATION,
)
@ROUTES.add("POST", "", **_CREATION)
async def post_automation(
    request: web.Request, body: AutomationOrder
) -> tuple[Automation, Secret | None]:
    """Create an automation: an agent that runs on a schedule, by a webhook, or by hand.

    Each run becomes a conversation with the `trigger` `automation`. With a trigger of the type
    `webhook` or `git`, only this response contains the secret that signs deliveries.
    """
    return await request.app[AUTOMATIONS].create(
        request[PRINCIPAL].user_id, copy_to(Definition, body), is_enabled=body.is_enabled
    )


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_automation(request: web.Request) -> AutomationInfo:
    """Show an automation.

    The secret of its webhook is not included.
    """
    found = await request.app[AUTOMATIONS].get(*_owner_and_id(request))
    return from_automation(found)


@ROUTES.add("PATCH", _ONE, body=AutomationUpdate, errors=(NotFound,), example={"enabled": False})
async def patch_automation(request: web.Request) -> AutomationInfo:
    """Change, enable or disable an automation.

    Omitted fields stay. A run in progress is not affected. Disabling cancels pending runs; enabling clears
    `disabled_reason`, and does not make up for runs that were due meanwhile. If the trigger becomes a
    webhook, it has no secret until you create one with `rotate-secret`.
    """
    changes = await read_changes(request, AutomationUpdate)
    is_enabled, state = changes.pop("enabled", None), changes.pop("state", None)
    if state is not None:
        is_enabled = state is State.ACTIVE
    changed = await request.app[AUTOMATIONS].update(
        *_owner_and_id(request), changes, is_enabled=is_enabled
    )
    return from_automation(changed)


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_automation(request: web.Request) -> Success:
    """Delete an automation and its runs.

    Its runs are deleted with it; their conversations stay.
    """
    await request.app[AUTOMATIONS].delete(*_owner_and_id(request))
    return SUCCESS


@ROUTES.add(
    "POST",
    f"{_ONE}/rotate-secret",
    effect=effect_of(Secret, _shown_secret),
    errors=(NotFound,),
)
async def post_rotate_secret(request: web.Request) -> Secret:
    """Replace the secret of the webhook of an automation.

    The former secret is invalid at once.
    """
    return await request.app[AUTOMATIONS].rotate(*_owner_and_id(request))


@ROUTES.add(
    "POST",
    f"{_ONE}/dispatch",
    effect=effect_of(Run, from_run, status=HTTPStatus.CREATED),
    errors=(NotFound, QuotaExceeded),
)
async def post_dispatch(request: web.Request) -> Run:
    """Run an automation now.

    This works even if the automation is disabled, but not for a trigger `git` (409). `concurrency`
    decides about a run in progress.
    """
    return await request.app[AUTOMATIONS].dispatch(*_owner_and_id(request))


@ROUTES.add("GET", f"{_ONE}/runs", errors=(NotFound,))
async def get_runs(request: web.Request, query: ListQuery) -> AutomationRunList:
    """List the runs of an automation, newest first.

    Runs that ended longer ago than the server's `automations.delete_runs_after_seconds` are deleted.
    """
    found, counts = await request.app[AUTOMATIONS].runs(
        *_owner_and_id(request), limit=query.limit, offset=query.offset
    )
    return AutomationRunList(
        runs=[from_run(run) for run in found],
        total=sum(counts.values()),
        status_counts={str(status): count for status, count in counts.items()},
    )


@ROUTES.add(
    "POST",
    "/runs/{run_id}/cancel",
    effect=effect_of(Run, from_run),
    errors=(NotFound, Conflict),
)
async def post_cancel(request: web.Request, run_id: str) -> Run:
    """Cancel a pending or running run.

    Its agent is stopped. A conversation that is still starting is deleted.
    """
    return await request.app[AUTOMATIONS].cancel(request[PRINCIPAL].user_id, run_id)


@ROUTES.add(
    "POST",
    "/events/{automation_id}",
    scope=Scope.OPEN,
    body=msgspec.Raw,
    errors=(NotAuthenticated, NotFound, QuotaExceeded),
    example={"action": "opened"},
)
async def post_delivery(request: web.Request) -> DeliveryReceipt:
    """Receive a signed delivery that starts a run.

    Accepts the signatures of Standard Webhooks (`webhook-id`, `webhook-timestamp`,
    `webhook-signature`), and those of GitHub, Forgejo and Gitea (HMAC-SHA256 of the body in hex,
    in `X-Hub-Signature-256`, `X-Signature-256`, `X-Forgejo-Signature` or `X-Gitea-Signature`). A
    repeated delivery starts no second run: it is identified by its id in the first case, by its body in
    the other. With a trigger `git`, `X-Hub-Signature` of Bitbucket and `X-Gitlab-Token` are accepted, too,
    and an event is identified by its issue, label or comment. With the id of a GitHub App, it accepts
    the App's deliveries for all repositories.
    """
    body = await read_body(request)
    if len(body) > LARGEST_DELIVERY:
        raise BodyTooLarge(f"A delivery has at most {LARGEST_DELIVERY} bytes")
    automation_id = path_id(request, "automation_id")
    payload = decode(body, _PAYLOAD)
    check_extremes(body, wide_integers=True)
    count, runs = await request.app[AUTOMATIONS].deliver(
        automation_id, request.headers, body, payload
    )
    return DeliveryReceipt(received=True, matched=count, runs_created=runs)


def _owner_and_id(request: web.Request) -> tuple[str, str]:
    """Return the ids of the user and of the automation in the path."""
    return request[PRINCIPAL].user_id, path_id(request, "automation_id")
