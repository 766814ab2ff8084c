"""Outgoing webhooks as a part of a server: where a user wants to be told of events and changes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiohttp import web

from agentsvc.base import Conflict, NotFound, Secret, ShownSecret, copy_to, stored_or_none, view_of
from agentsvc.extension.server import Extension, Server
from agentsvc.extension.web import (
    PRINCIPAL,
    SUCCESS,
    Limit,
    Page,
    Routes,
    Success,
    Time,
    changes_of,
    effect_of,
    path_text,
    read_changes,
)

from .config import WebhooksConfig
from .delivery_worker import DeliveryWorker
from .model import ChangeKind, Delivery, DeliveryState, Subscription, WebhookOrder
from .sender import Sender
from .service import Webhooks

_FORGET_SECONDS: Final = 600.0

WEBHOOKS: Final[web.AppKey[Webhooks]] = web.AppKey("webhooks")
DELIVERY_WORKER: Final[web.AppKey[DeliveryWorker]] = web.AppKey("worker")

_ONE: Final = "/{subscription_id}"
_PAGE: Final = 50


WebhookUpdate: Final = changes_of(
    WebhookOrder, "WebhookUpdate", "What to change of a subscription; what is not sent stays."
)


class WebhookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription; its secret is not shown again.

    `disabled_reason` says why it was disabled, if not by the user: the receiver answered 410. Nothing
    is sent before `quiet_until`, as the receiver asked by `Retry-After`. Until `former_secret_until`
    there is a signature with the former secret, too.
    """

    id: str
    """Id of the subscription"""
    url: str
    """URL that deliveries are posted to"""
    description: str
    """What it is for; empty if that was not said"""
    event_kinds: list[str] | None
    """Kinds of events that are told of; null: all kinds"""
    changes: list[ChangeKind]
    """Kinds of things whose changes are told of"""
    is_enabled: bool
    """Whether anything is delivered"""
    disabled_reason: str
    """Why the server has disabled it, such as an answer 410; empty if it has not"""
    quiet_until: Time | None
    """Nothing is sent before this moment, as the receiver has asked by `Retry-After`; null: at once
    """
    former_secret_until: Time | None
    """Until when deliveries are signed with the former secret, too; null if they are not"""
    created_at: Time
    updated_at: Time


class NewWebhookInfo(WebhookInfo, frozen=True, kw_only=True):
    """A subscription at the only moment its secret can be seen."""

    secret: ShownSecret
    """Key of the signatures (Standard Webhooks, `whsec_` and base64); it is shown here only"""


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries to list."""

    state: DeliveryState | None = None
    """Only deliveries in this state; left out: all"""
    page_id: str | None = None
    limit: Limit = _PAGE


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery; `id` is the `webhook-id` the receiver sees, `status` what it last answered.

    `about_id` is the conversation it is about, or the sandbox; `seq` the number of its event.
    """

    id: str
    """Id of the delivery, which the receiver sees as `webhook-id`; the same in every attempt"""
    type: str
    """What it tells, as in the `type` of its body"""
    about_id: str
    """Id of the conversation, sandbox or start task it is about"""
    seq: int | None
    """Number of the event it tells of, within its conversation; null if it tells of a change"""
    state: DeliveryState
    """How far it is"""
    attempts: int
    """Number of attempts so far"""
    status: int | None
    """HTTP status the receiver answered last; null if it has not answered yet"""
    reason: str
    """Why the last attempt failed, for people; empty if it did not"""
    created_at: Time
    next_attempt_at: Time | None
    """When it is tried next, in UTC; null if it is not"""
    settled_at: Time | None
    """When it was delivered or given up, in UTC; null before"""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """How many deliveries are made again."""

    replayed: int
    """Number of deliveries that are made again"""


def from_subscription(subscription: Subscription) -> WebhookInfo:
    """Return what is shown of a subscription."""
    former_secret_until = stored_or_none(subscription.former_until)
    return view_of(WebhookInfo, subscription, former_secret_until=former_secret_until)


def from_delivery(delivery: Delivery) -> DeliveryInfo:
    """Return what is shown of a delivery."""
    is_pending = delivery.state is DeliveryState.PENDING
    return view_of(
        DeliveryInfo,
        delivery,
        about_id=delivery.lane,
        next_attempt_at=stored_or_none(delivery.due_at if is_pending else None),
    )


ROUTES: Final = Routes()


def _with_secret(made: tuple[Subscription, Secret]) -> NewWebhookInfo:
    subscription, secret = made
    return copy_to(NewWebhookInfo, from_subscription(subscription), secret=secret.reveal())


@ROUTES.add("GET", "")
async def get_webhook_subscriptions(request: web.Request) -> list[WebhookInfo]:
    """List your webhook subscriptions.

    In the order they were made, without their secrets.
    """
    found = await request.app[WEBHOOKS].list_of(request[PRINCIPAL].user_id)
    return [from_subscription(one) for one in found]


@ROUTES.add(
    "POST",
    "",
    effect=effect_of(tuple, _with_secret, status=201),
    errors=(Conflict,),
    example={
        "url": "https://receiver.example/hook",
        "event_kinds": ["MessageEvent"],
        "changes": [],
    },
)
async def post_webhook_subscription(
    request: web.Request, body: WebhookOrder
) -> tuple[Subscription, Secret]:
    """Have events and changes of yours delivered to a URL.

    Deliveries follow Standard Webhooks: signed with the secret, tried again until the receiver
    answers 2xx or the tries are over. The answer is the only one that has the secret. A URL in a
    private network is refused unless the operator allows it.
    """
    made = await request.app[WEBHOOKS].add(request[PRINCIPAL].user_id, body)
    request.app[DELIVERY_WORKER].wake()
    return made


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_webhook_subscription(request: web.Request) -> WebhookInfo:
    """Show a webhook subscription.

    Without its secret.
    """
    found = await request.app[WEBHOOKS].get(*_named(request))
    return from_subscription(found)


@ROUTES.add(
    "PATCH",
    _ONE,
    body=WebhookUpdate,
    errors=(NotFound,),
    example={"description": "build server"},
)
async def patch_webhook_subscription(request: web.Request) -> WebhookInfo:
    """Change a webhook subscription.

    Only what is sent is changed. What is waiting is delivered as the subscription says then. To enable
    one again clears `disabled_reason`, too.
    """
    changes = await read_changes(request, WebhookUpdate)
    changed = await request.app[WEBHOOKS].update(*_named(request), changes)
    request.app[DELIVERY_WORKER].wake()
    return from_subscription(changed)


@ROUTES.add(
    "POST",
    f"{_ONE}/rotate-secret",
    effect=effect_of(tuple, _with_secret),
    errors=(NotFound,),
)
async def post_webhook_secret(request: web.Request) -> tuple[Subscription, Secret]:
    """Replace the secret of a webhook subscription; both sign for some time.

    The answer is the only one that has the new secret. Deliveries are signed with both until
    `former_secret_until`.
    """
    return await request.app[WEBHOOKS].rotate(*_named(request))


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_webhook_subscription(request: web.Request) -> Success:
    """Delete a webhook subscription and its deliveries.

    What is waiting is not delivered any more.
    """
    await request.app[WEBHOOKS].remove(*_named(request))
    return SUCCESS


@ROUTES.add("GET", f"{_ONE}/deliveries", errors=(NotFound,), example={"state": "failed"})
async def search_webhook_deliveries(
    request: web.Request, query: DeliveryQuery
) -> Page[DeliveryInfo]:
    """List the deliveries of a webhook subscription, newest first.

    They are kept for some days after they were delivered or given up.
    """
    found, next_page_id = await request.app[WEBHOOKS].deliveries(
        *_named(request), state=query.state, page_id=query.page_id, limit=query.limit
    )
    items = [from_delivery(one) for one in found]
    return Page[DeliveryInfo](items=items, next_page_id=next_page_id)


@ROUTES.add(
    "POST",
    f"{_ONE}/deliveries/{{delivery_id}}/replay",
    effect=effect_of(Delivery, from_delivery),
    errors=(NotFound,),
)
async def post_webhook_replay(request: web.Request) -> Delivery:
    """Make a webhook delivery again.

    Under the same id, also one that was delivered; one that is still to be made is made at once.
    """
    delivery_id = path_text(request, "delivery_id")
    delivery = await request.app[WEBHOOKS].replay(*_named(request), delivery_id)
    request.app[DELIVERY_WORKER].wake()
    return delivery


@ROUTES.add(
    "POST",
    f"{_ONE}/replay-failed",
    Replayed,
    effect=effect_of(int, lambda count: Replayed(replayed=count)),
    errors=(NotFound,),
)
async def post_webhook_replay_failed(request: web.Request) -> int:
    """Make every webhook delivery again that was given up.

    At once, each under the id it had.
    """
    count = await request.app[WEBHOOKS].replay_failed(*_named(request))
    request.app[DELIVERY_WORKER].wake()
    return count


def _named(request: web.Request) -> tuple[str, str]:
    """Return who is calling and which subscription is meant."""
    return request[PRINCIPAL].user_id, path_text(request, "subscription_id")


class WebhooksExtension(Extension[WebhooksConfig]):
    """Delivers what is to be told, while the server runs."""

    Config = WebhooksConfig
    prefix = "/api/v1/webhook-subscriptions"
    operations = ROUTES

    @asynccontextmanager
    async def run(self, server: Server) -> AsyncIterator[None]:
        """Deliver until the server stops."""
        sender = Sender(
            time_limit=self.config.send_seconds,
            allows_private=self.config.allow_private,
            most=self.config.concurrency,
            own=server.config.server.own_urls(),
        )
        worker = DeliveryWorker(server, sender, self.config)
        server.app[WEBHOOKS] = Webhooks(server.database, server.vault, self.config)
        server.app[DELIVERY_WORKER] = worker
        server.event_bus.watch_all(worker.on_notice)
        server.supervisor.loop("webhooks", worker.deliver_due, every_seconds=0)
        server.supervisor.loop(
            "old webhook deliveries", worker.forget_settled, every_seconds=_FORGET_SECONDS
        )
        try:
            yield
        finally:
            await worker.stop(server.config.server.shutdown_grace_seconds)
            await sender.close()
