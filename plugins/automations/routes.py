"""Handlers of automations, their runs, and the deliveries of their webhooks."""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import BodyTooLarge, Conflict, NotAuthenticated, NotFound, QuotaExceeded, Secret
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Described,
    Effect,
    Example,
    Routes,
    Scope,
    Success,
    check_extremes,
    decode,
    json_response,
    path_id,
    read_body,
    read_json,
)

from .model import Automation, Run
from .service import Automations
from .types import (
    AutomationInfo,
    AutomationList,
    AutomationOrder,
    AutomationRun,
    AutomationRunList,
    AutomationSecret,
    AutomationUpdate,
    DeliveryReceipt,
    ListQuery,
    NewAutomationInfo,
    from_automation,
    from_run,
    to_definition,
)

PREFIX: Final = "/api/automation/v1"
LARGEST_DELIVERY: Final = 256 * 1024

AUTOMATIONS: Final[web.AppKey[Automations]] = web.AppKey("automations")
WAKE: Final[web.AppKey[asyncio.Event]] = web.AppKey("automations_wake")
"""Has the scheduler look at once."""

_ONE: Final = "/{automation_id}"
_PAYLOAD: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()


ROUTES: Final = Routes()


def _answer_new(_request: web.Request, made: tuple[Automation, Secret | None]) -> web.Response:
    automation, secret = made
    shown = msgspec.structs.asdict(from_automation(automation, PREFIX))
    info = NewAutomationInfo(**shown, secret=secret.reveal() if secret else None)
    return json_response(info, status=HTTPStatus.CREATED)


def _answer_secret(_request: web.Request, secret: Secret) -> web.Response:
    return json_response(AutomationSecret(secret=secret.reveal()))


def _answer_made_run(_request: web.Request, run: Run) -> web.Response:
    return json_response(from_run(run), status=HTTPStatus.CREATED)


def _answer_run(_request: web.Request, run: Run) -> web.Response:
    return json_response(from_run(run))


_EXAMPLE: Final = Example(
    body={
        "name": "Nightly dependency check",
        "prompt": "Update the dependencies, run the tests, and say what has changed.",
        "trigger": {"type": "cron", "schedule": "0 3 * * 1-5", "timezone": "Europe/Berlin"},
        "repos": [{"url": "octocat/hello-world"}],
    }
)


_CREATION: Final[Described] = {
    "scope": Scope.RUN,
    "body": AutomationOrder,
    "answer": NewAutomationInfo,
    "status": HTTPStatus.CREATED,
    "effect": Effect(kind=tuple, answer=_answer_new),
    "errors": (Conflict,),
    "example": _EXAMPLE,
}


@ROUTES.add("GET", "")
async def get_automations(request: web.Request, query: ListQuery) -> AutomationList:
    """List your automations.

    One sees only automations of one's own, the newest first.
    """
    found, total = await request.app[AUTOMATIONS].list_of(
        request[PRINCIPAL].user_id, limit=query.limit, offset=query.offset
    )
    shown = [from_automation(one, PREFIX) for one in found]
    return AutomationList(automations=shown, total=total)


@ROUTES.add(
    "POST",
    "/preset/prompt",
    summary="Do the same, where clients of the published service do it",
    **_CREATION,
)
@ROUTES.add("POST", "", **_CREATION)
async def post_automation(request: web.Request) -> web.Response:
    """Have an agent work on a schedule, by a webhook, or by hand.

    What is due becomes a conversation with the `trigger` `automation`. With a trigger of the type
    `webhook`, the answer is the only one that has the secret which signs deliveries.
    """
    order = await read_json(request, AutomationOrder)
    made = await request.app[AUTOMATIONS].create(
        request[PRINCIPAL].user_id, to_definition(order), is_enabled=order.is_enabled
    )
    request.app[WAKE].set()
    return _answer_new(request, made)


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_automation(request: web.Request) -> AutomationInfo:
    """Show an automation.

    Without the secret of its webhook.
    """
    found = await request.app[AUTOMATIONS].get(*_named(request))
    return from_automation(found, PREFIX)


@ROUTES.add("PATCH", _ONE, errors=(NotFound,), example={"enabled": False})
async def patch_automation(request: web.Request, body: AutomationUpdate) -> AutomationInfo:
    """Change, enable or disable an automation.

    Only what is sent is changed. A run that goes on is not touched. To enable an automation again
    clears `disabled_reason`, and makes up for nothing that was due meanwhile.
    """
    changed = await request.app[AUTOMATIONS].update(
        *_named(request), body.changes(), is_enabled=body.is_enabled
    )
    request.app[WAKE].set()
    return from_automation(changed, PREFIX)


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
    AutomationSecret,
    effect=Effect(kind=Secret, answer=_answer_secret),
    errors=(NotFound,),
)
async def post_rotate_secret(request: web.Request) -> web.Response:
    """Replace the secret of the webhook of an automation.

    The former one is worth nothing from now on.
    """
    return _answer_secret(request, await request.app[AUTOMATIONS].rotate(*_named(request)))


@ROUTES.add(
    "POST",
    f"{_ONE}/dispatch",
    AutomationRun,
    status=HTTPStatus.CREATED,
    effect=Effect(kind=Run, answer=_answer_made_run),
    errors=(NotFound, QuotaExceeded),
)
async def post_dispatch(request: web.Request) -> web.Response:
    """Run an automation now.

    Also where the automation is disabled. What goes on already is treated as `concurrency` says.
    """
    run = await request.app[AUTOMATIONS].dispatch(*_named(request))
    request.app[WAKE].set()
    return _answer_made_run(request, run)


@ROUTES.add("GET", f"{_ONE}/runs", errors=(NotFound,))
async def get_runs(request: web.Request, query: ListQuery) -> AutomationRunList:
    """List the runs of an automation, newest first.

    They are kept as long as the automation is.
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
    AutomationRun,
    effect=Effect(kind=Run, answer=_answer_run),
    errors=(NotFound, Conflict),
)
async def post_cancel(request: web.Request) -> web.Response:
    """Cancel a run that waits or goes on.

    Its agent is stopped. A conversation that is still being started is deleted.
    """
    user_id, run_id = request[PRINCIPAL].user_id, path_id(request, "run_id")
    run = await request.app[AUTOMATIONS].cancel(user_id, run_id)
    request.app[WAKE].set()
    return _answer_run(request, run)


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
    request.app[WAKE].set()
    return DeliveryReceipt(received=True, matched=count, runs_created=runs)


def _named(request: web.Request) -> tuple[str, str]:
    """Return who is calling and which automation is meant."""
    return request[PRINCIPAL].user_id, path_id(request, "automation_id")
