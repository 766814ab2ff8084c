"""Handlers of automations, their runs, and the deliveries of their webhooks."""

import asyncio
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import (
    BodyTooLarge,
    Conflict,
    NotAuthenticated,
    NotFound,
    QuotaExceeded,
    Secret,
)
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Effect,
    Example,
    Route,
    Scope,
    Success,
    check_extremes,
    decode,
    json_response,
    path_id,
    read_body,
    read_json,
    read_query,
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
_ORDER = msgspec.json.Decoder(AutomationOrder)
_UPDATE = msgspec.json.Decoder(AutomationUpdate)
_PAYLOAD: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()


async def get_automations(request: web.Request) -> web.Response:
    """GET /automation/v1.

    One sees only automations of one's own, the newest first.
    """
    query = read_query(request, ListQuery)
    found, total = await request.app[AUTOMATIONS].list_of(
        request[PRINCIPAL].user_id, limit=query.limit, offset=query.offset
    )
    shown = [from_automation(one, PREFIX) for one in found]
    return json_response(AutomationList(automations=shown, total=total))


async def post_automation(request: web.Request) -> web.Response:
    """POST /automation/v1/preset/prompt.

    What is due becomes a conversation with the `trigger` `automation`. With a trigger of the type
    `webhook`, the answer is the only one that has the secret which signs deliveries.
    """
    order = await read_json(request, _ORDER)
    made = await request.app[AUTOMATIONS].create(
        request[PRINCIPAL].user_id, to_definition(order), is_enabled=order.is_enabled
    )
    request.app[WAKE].set()
    return _answer_new(request, made)


def _answer_new(_request: web.Request, made: tuple[Automation, Secret | None]) -> web.Response:
    automation, secret = made
    shown = msgspec.structs.asdict(from_automation(automation, PREFIX))
    info = NewAutomationInfo(**shown, secret=secret.reveal() if secret else None)
    return json_response(info, status=HTTPStatus.CREATED)


async def get_automation(request: web.Request) -> web.Response:
    """GET /automation/v1/{automation_id}.

    Without the secret of its webhook.
    """
    found = await request.app[AUTOMATIONS].get(*_named(request))
    return json_response(from_automation(found, PREFIX))


async def patch_automation(request: web.Request) -> web.Response:
    """PATCH /automation/v1/{automation_id}.

    Only what is sent is changed. A run that goes on is not touched. To enable an automation again
    clears `disabled_reason`, and makes up for nothing that was due meanwhile.
    """
    wanted = await read_json(request, _UPDATE)
    changed = await request.app[AUTOMATIONS].update(
        *_named(request), wanted.changes(), is_enabled=wanted.is_enabled
    )
    request.app[WAKE].set()
    return json_response(from_automation(changed, PREFIX))


async def delete_automation(request: web.Request) -> web.Response:
    """DELETE /automation/v1/{automation_id}.

    Its runs are deleted with it; their conversations stay.
    """
    await request.app[AUTOMATIONS].delete(*_named(request))
    return json_response(SUCCESS)


async def post_rotate_secret(request: web.Request) -> web.Response:
    """POST /automation/v1/{automation_id}/rotate-secret.

    The former one is worth nothing from now on.
    """
    return _answer_secret(request, await request.app[AUTOMATIONS].rotate(*_named(request)))


def _answer_secret(_request: web.Request, secret: Secret) -> web.Response:
    return json_response(AutomationSecret(secret=secret.reveal()))


async def post_dispatch(request: web.Request) -> web.Response:
    """POST /automation/v1/{automation_id}/dispatch.

    Also where the automation is disabled. What goes on already is treated as `concurrency` says.
    """
    run = await request.app[AUTOMATIONS].dispatch(*_named(request))
    request.app[WAKE].set()
    return _answer_made_run(request, run)


def _answer_made_run(_request: web.Request, run: Run) -> web.Response:
    return json_response(from_run(run), status=HTTPStatus.CREATED)


async def get_runs(request: web.Request) -> web.Response:
    """GET /automation/v1/{automation_id}/runs.

    They are kept as long as the automation is.
    """
    query = read_query(request, ListQuery)
    found, counts = await request.app[AUTOMATIONS].runs(
        *_named(request), limit=query.limit, offset=query.offset
    )
    listed = AutomationRunList(
        runs=[from_run(run) for run in found],
        total=sum(counts.values()),
        status_counts={str(status): count for status, count in counts.items()},
    )
    return json_response(listed)


async def post_cancel(request: web.Request) -> web.Response:
    """POST /automation/v1/runs/{run_id}/cancel.

    Its agent is stopped. A conversation that is still being started is deleted.
    """
    user_id, run_id = request[PRINCIPAL].user_id, path_id(request, "run_id")
    run = await request.app[AUTOMATIONS].cancel(user_id, run_id)
    request.app[WAKE].set()
    return _answer_run(request, run)


def _answer_run(_request: web.Request, run: Run) -> web.Response:
    return json_response(from_run(run))


async def post_delivery(request: web.Request) -> web.Response:
    """POST /automation/v1/events/{automation_id}.

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
    receipt = DeliveryReceipt(received=True, matched=count, runs_created=runs)
    return json_response(receipt)


def _named(request: web.Request) -> tuple[str, str]:
    """Return who is calling and which automation is meant."""
    return request[PRINCIPAL].user_id, path_id(request, "automation_id")


_EXAMPLE: Final = Example(
    body={
        "name": "Nightly dependency check",
        "prompt": "Update the dependencies, run the tests, and say what has changed.",
        "trigger": {"type": "cron", "schedule": "0 3 * * 1-5", "timezone": "Europe/Berlin"},
        "repos": [{"url": "octocat/hello-world"}],
    }
)


def _creation(path: str, summary: str) -> Route:
    return Route(
        method="POST",
        path=path,
        handler=post_automation,
        scope=Scope.RUN,
        rank="P2",
        summary=summary,
        body=AutomationOrder,
        answer=NewAutomationInfo,
        status=HTTPStatus.CREATED,
        effect=Effect(kind=tuple, answer=_answer_new),
        errors=(Conflict,),
        example=_EXAMPLE,
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="",
        handler=get_automations,
        scope=Scope.READ,
        rank="P2",
        summary="List your automations",
        query=ListQuery,
        answer=AutomationList,
    ),
    _creation("", "Have an agent work on a schedule, by a webhook, or by hand"),
    _creation("/preset/prompt", "Do the same, where clients of the published service do it"),
    Route(
        method="GET",
        path=_ONE,
        handler=get_automation,
        scope=Scope.READ,
        rank="P2",
        summary="Show an automation",
        answer=AutomationInfo,
        errors=(NotFound,),
    ),
    Route(
        method="PATCH",
        path=_ONE,
        handler=patch_automation,
        scope=Scope.RUN,
        rank="P2",
        summary="Change, enable or disable an automation",
        body=AutomationUpdate,
        answer=AutomationInfo,
        errors=(NotFound,),
        example=Example(body={"enabled": False}),
    ),
    Route(
        method="DELETE",
        path=_ONE,
        handler=delete_automation,
        scope=Scope.RUN,
        rank="P2",
        summary="Delete an automation and its runs",
        answer=Success,
        errors=(NotFound,),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/rotate-secret",
        handler=post_rotate_secret,
        scope=Scope.RUN,
        rank="P2",
        summary="Replace the secret of the webhook of an automation",
        answer=AutomationSecret,
        effect=Effect(kind=Secret, answer=_answer_secret),
        errors=(NotFound,),
    ),
    Route(
        method="POST",
        path=f"{_ONE}/dispatch",
        handler=post_dispatch,
        scope=Scope.RUN,
        rank="P2",
        summary="Run an automation now",
        answer=AutomationRun,
        status=HTTPStatus.CREATED,
        effect=Effect(kind=Run, answer=_answer_made_run),
        errors=(NotFound, QuotaExceeded),
    ),
    Route(
        method="GET",
        path=f"{_ONE}/runs",
        handler=get_runs,
        scope=Scope.READ,
        rank="P2",
        summary="List the runs of an automation, newest first",
        query=ListQuery,
        answer=AutomationRunList,
        errors=(NotFound,),
    ),
    Route(
        method="POST",
        path="/runs/{run_id}/cancel",
        handler=post_cancel,
        scope=Scope.RUN,
        rank="P2",
        summary="Cancel a run that waits or goes on",
        answer=AutomationRun,
        effect=Effect(kind=Run, answer=_answer_run),
        errors=(NotFound, Conflict),
    ),
    Route(
        method="POST",
        path="/events/{automation_id}",
        handler=post_delivery,
        scope=Scope.OPEN,
        rank="P2",
        summary="Take a signed delivery that starts a run",
        body=msgspec.Raw,
        answer=DeliveryReceipt,
        errors=(NotAuthenticated, NotFound, QuotaExceeded),
        example=Example(body={"action": "opened"}),
    ),
)
