"""The server extension of outgoing webhooks: types and request handlers."""

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
    WebhookOrder, "WebhookUpdate", "Changes to a subscription; omitted fields stay."
)


class WebhookInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription; its secret is not shown again.

    `disabled_reason` says why the server disabled it: the receiver responded with 410. Nothing
    is sent before `quiet_until`, as the receiver requested by `Retry-After`. Until `former_secret_until`,
    deliveries are also signed with the former secret.
    """

    id: str
    """Id of the subscription"""
    url: str
    """URL of the receiver"""
    description: str
    """Purpose of the subscription; may be empty"""
    event_kinds: list[str] | None
    """Kinds of events to deliver; null: all kinds"""
    changes: list[ChangeKind]
    """Kinds of objects whose changes to deliver"""
    is_enabled: bool
    """Whether anything is delivered"""
    disabled_reason: str
    """Why the server disabled it, such as a response 410; empty if it did not"""
    quiet_until: Time | None
    """Time before which nothing is sent, as the receiver requested by `Retry-After`; null: none
    """
    former_secret_until: Time | None
    """Until when deliveries are also signed with the former secret; null if they are not"""
    created_at: Time
    updated_at: Time


class NewWebhookInfo(WebhookInfo, frozen=True, kw_only=True):
    """A subscription with its secret, which is shown only here."""

    secret: ShownSecret
    """Secret that signs deliveries (Standard Webhooks, `whsec_` and base64); shown only here"""


class DeliveryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filter and page of a list of deliveries."""

    state: DeliveryState | None = None
    """Only deliveries in this state; omitted: all"""
    page_id: str | None = None
    limit: Limit = _PAGE


class DeliveryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery; `id` is the `webhook-id` that the receiver sees, `status` its last response.

    `about_id` is the conversation it is about, or the sandbox; `seq` the number of its event.
    """

    id: str
    """Id of the delivery, sent as `webhook-id`; the same in every attempt"""
    type: str
    """Type of the event or change, as in the `type` of the body"""
    about_id: str
    """Id of the conversation, sandbox or start task it is about"""
    seq: int | None
    """Number of the event within its conversation; null for a change"""
    state: DeliveryState
    """State of the delivery"""
    attempts: int
    """Number of attempts so far"""
    status: int | None
    """HTTP status of the receiver's last response; null if there was none"""
    reason: str
    """Why the last attempt failed; empty if it did not"""
    created_at: Time
    next_attempt_at: Time | None
    """Time of the next attempt, in UTC; null if there is none"""
    settled_at: Time | None
    """When it was delivered or failed for good, in UTC; null before"""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """The number of replayed deliveries."""

    replayed: int
    """Number of deliveries to repeat"""


def from_subscription(subscription: Subscription) -> WebhookInfo:
    """Return the API's view of a subscription."""
    former_secret_until = stored_or_none(subscription.former_until)
    return view_of(WebhookInfo, subscription, former_secret_until=former_secret_until)


def from_delivery(delivery: Delivery) -> DeliveryInfo:
    """Return the API's view of a delivery."""
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

    In the order of creation, without their secrets.
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
    """Deliver your events and changes to a URL.

    Deliveries follow Standard Webhooks: signed with the secret, and retried until the receiver
    responds with 2xx or the retries end. Only this response contains the secret. A URL in a
    private network is rejected unless the operator allows it.
    """
    made = await request.app[WEBHOOKS].add(request[PRINCIPAL].user_id, body)
    request.app[DELIVERY_WORKER].wake()
    return made


@ROUTES.add("GET", _ONE, errors=(NotFound,))
async def get_webhook_subscription(request: web.Request) -> WebhookInfo:
    """Show a webhook subscription.

    The secret is not included.
    """
    found = await request.app[WEBHOOKS].get(*_owner_and_id(request))
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

    Omitted fields stay. Pending deliveries are sent to the changed subscription. Enabling also clears
    `disabled_reason`.
    """
    changes = await read_changes(request, WebhookUpdate)
    changed = await request.app[WEBHOOKS].update(*_owner_and_id(request), changes)
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

    Only this response contains the new secret. Deliveries are signed with both secrets until
    `former_secret_until`.
    """
    return await request.app[WEBHOOKS].rotate(*_owner_and_id(request))


@ROUTES.add("DELETE", _ONE, errors=(NotFound,))
async def delete_webhook_subscription(request: web.Request) -> Success:
    """Delete a webhook subscription and its deliveries.

    Pending deliveries are not sent any more.
    """
    await request.app[WEBHOOKS].remove(*_owner_and_id(request))
    return SUCCESS


@ROUTES.add("GET", f"{_ONE}/deliveries", errors=(NotFound,), example={"state": "failed"})
async def search_webhook_deliveries(
    request: web.Request, query: DeliveryQuery
) -> Page[DeliveryInfo]:
    """List the deliveries of a webhook subscription, newest first.

    Deliveries stay in the list for some days after they were delivered or failed.
    """
    found, next_page_id = await request.app[WEBHOOKS].deliveries(
        *_owner_and_id(request), state=query.state, page_id=query.page_id, limit=query.limit
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
    """Repeat a webhook delivery.

    The id stays the same. A delivered one is sent again; a pending one is sent at once.
    """
    delivery_id = path_text(request, "delivery_id")
    delivery = await request.app[WEBHOOKS].replay(*_owner_and_id(request), delivery_id)
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
    """Repeat every failed webhook delivery.

    They are sent at once, each with the same id.
    """
    count = await request.app[WEBHOOKS].replay_failed(*_owner_and_id(request))
    request.app[DELIVERY_WORKER].wake()
    return count


def _owner_and_id(request: web.Request) -> tuple[str, str]:
    """Return the ids of the user and of the subscription in the path."""
    return request[PRINCIPAL].user_id, path_text(request, "subscription_id")


class WebhooksExtension(Extension[WebhooksConfig]):
    """Sends deliveries while the server runs."""

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
