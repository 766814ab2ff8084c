"""Types and handlers of automations, their runs, and the deliveries of their webhooks.

The types are named as the published automation service has them.
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
    """Whether anything but `dispatch` starts runs"""
    state: State | None = None
    """The same; null: as `enabled` says"""

    @property
    def is_enabled(self) -> bool:
        """Whether it is to be enabled."""
        return self.enabled if self.state is None else self.state is State.ACTIVE


AutomationUpdate: Final = changes_of(
    AutomationOrder, "AutomationUpdate", "What to change of an automation; what is not sent stays."
)


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

    limit: Annotated[int, Meta(ge=1, le=MAX_LISTED)] = 50
    """How many at most"""
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
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


def from_automation(automation: Automation) -> AutomationInfo:
    """Return what is shown of an automation."""
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

    One sees only automations of one's own, the newest first.
    """
    found, total = await request.app[AUTOMATIONS].list_of(
        request[PRINCIPAL].user_id, limit=query.limit, offset=query.offset
    )
    shown = [from_automation(one) for one in found]
    return AutomationList(automations=shown, total=total)


@ROUTES.add(
    "POST",
    "/preset/prompt",
    summary="Do the same, where clients of the published service do it",
    **_CREATION,
)
@ROUTES.add("POST", "", **_CREATION)
async def post_automation(
    request: web.Request, body: AutomationOrder
) -> tuple[Automation, Secret | None]:
    """Have an agent work on a schedule, by a webhook, or by hand.

    What is due becomes a conversation with the `trigger` `automation`. With a trigger of the type
    `webhook`, the answer is the only one that has the secret which signs deliveries.
    """
    return await request.app[AUTOMATIONS].create(
        request[PRINCIPAL].user_id, copy_to(Definition, body), is_enabled=body.is_enabled
    )


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_automation(request: web.Request) -> AutomationInfo:
    """Show an automation.

    Without the secret of its webhook.
    """
    found = await request.app[AUTOMATIONS].get(*_named(request))
    return from_automation(found)


@ROUTES.add("PATCH", _ONE, body=AutomationUpdate, errors=(NotFound,), example={"enabled": False})
async def patch_automation(request: web.Request) -> AutomationInfo:
    """Change, enable or disable an automation.

    Only what is sent is changed. A run that goes on is not touched. To disable one cancels what waits;
    to enable it again clears `disabled_reason`, and makes up for nothing that was due meanwhile. A webhook
    that is new has no secret until one is made with `rotate-secret`.
    """
    changes = await read_changes(request, AutomationUpdate)
    is_enabled, state = changes.pop("enabled", None), changes.pop("state", None)
    if state is not None:
        is_enabled = state is State.ACTIVE
    changed = await request.app[AUTOMATIONS].update(
        *_named(request), changes, is_enabled=is_enabled
    )
    return from_automation(changed)


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_automation(request: web.Request) -> Success:
    """Delete an automation and its runs.

    Its runs are deleted with it; their conversations stay.
    """
    await request.app[AUTOMATIONS].delete(*_named(request))
    return SUCCESS


@ROUTES.add(
    "POST",
    f"{_ONE}/rotate-secret",
    effect=effect_of(Secret, _shown_secret),
    errors=(NotFound,),
)
async def post_rotate_secret(request: web.Request) -> Secret:
    """Replace the secret of the webhook of an automation.

    The former one is worth nothing from now on.
    """
    return await request.app[AUTOMATIONS].rotate(*_named(request))


@ROUTES.add(
    "POST",
    f"{_ONE}/dispatch",
    effect=effect_of(Run, from_run, status=HTTPStatus.CREATED),
    errors=(NotFound, QuotaExceeded),
)
async def post_dispatch(request: web.Request) -> Run:
    """Run an automation now.

    Also where the automation is disabled. What goes on already is treated as `concurrency` says.
    """
    return await request.app[AUTOMATIONS].dispatch(*_named(request))


@ROUTES.add("GET", f"{_ONE}/runs", errors=(NotFound,))
async def get_runs(request: web.Request, query: ListQuery) -> AutomationRunList:
    """List the runs of an automation, newest first.

    Those that ended long ago are deleted, as `automations.delete_runs_after_seconds` of the server says.
    """
    found, counts = await request.app[AUTOMATIONS].runs(
        *_named(request), limit=query.limit, offset=query.offset
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
    """Cancel a run that waits or goes on.

    Its agent is stopped. A conversation that is still being started is deleted.
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
    """Take a signed delivery that starts a run.

    Takes signatures as Standard Webhooks has them (`webhook-id`, `webhook-timestamp`,
    `webhook-signature`), and as GitHub, Forgejo and Gitea have them (HMAC-SHA256 of the body in hex,
    in `X-Hub-Signature-256`, `X-Signature-256`, `X-Forgejo-Signature` or `X-Gitea-Signature`). The
    same delivery starts one run however often it comes: by its id in the first case, by its body in
    the other. With a trigger `git`, `X-Hub-Signature` of Bitbucket and `X-Gitlab-Token` are taken, too,
    and an event is known by the issue, label or comment it is about. With the id of a GitHub App, it takes
    what that delivers of all repositories.
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


def _named(request: web.Request) -> tuple[str, str]:
    """Return who is calling and which automation is meant."""
    return request[PRINCIPAL].user_id, path_id(request, "automation_id")
