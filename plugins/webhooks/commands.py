"""The commands `agentsvc webhooks`: manage outgoing webhooks; they work while the server runs."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import click

from agentsvc.base import Secret
from agentsvc.cli.extension import (
    CommandFailed,
    ConfigOptions,
    Installation,
    KeyRing,
    example,
    existing_data_dir,
    json_option,
    output_option,
    print_table,
    secret_output,
    settings_of,
    where_options,
)

from .config import WebhooksConfig
from .model import ChangeKind, DeliveryState, Subscription, WebhookOrder
from .service import Webhooks

_CHANGES: Final = click.Choice([change.value for change in ChangeKind])
_STATES: Final = click.Choice([state.value for state in DeliveryState])


@click.group(
    "webhooks", epilog=example("agentsvc webhooks add https://ci.example.com/hook --user ann")
)
def command() -> None:
    """Deliver events and changes to URLs, and list and replay deliveries.

    A subscription belongs to a user and covers that user's data. A running server applies changes
    within seconds.
    """


@command.command("list", epilog=example("agentsvc webhooks list"))
@json_option
@where_options
def list_webhooks(*, as_json: bool, where: ConfigOptions) -> None:
    """List the webhooks of all users; their secrets are not shown."""

    async def body(webhooks: Webhooks, users: KeyRing) -> list[tuple[str, ...]]:
        names = {await users.find_user(name): name for name in await users.list_users()}
        return [_line(one, names[one.user_id]) for one in await webhooks.list_of(None)]

    rows = _run(where, body)
    print_table(("ID", "USER", "URL", "KINDS", "CHANGES", "STATE"), rows, as_json=as_json)


@command.command(
    epilog=example(
        "agentsvc webhooks add https://ci.example.com/hook --user ann --change conversation"
    )
)
@click.argument("url", metavar="URL")
@click.option("--user", required=True, metavar="NAME", help="Owner of the events and changes.")
@click.option("--kind", multiple=True, metavar="KIND", help="Kind of events; default: all.")
@click.option("--no-events", is_flag=True, help="Deliver no events.")
@click.option("--change", multiple=True, type=_CHANGES, help="Kind of changes; default: all.")
@click.option("--no-changes", is_flag=True, help="Deliver no changes.")
@click.option("--description", default="", metavar="TEXT", help="Purpose of the webhook.")
@output_option
@where_options
def add(
    *,
    url: str,
    user: str,
    kind: tuple[str, ...],
    no_events: bool,
    change: tuple[str, ...],
    no_changes: bool,
    description: str,
    output: str | None,
    where: ConfigOptions,
) -> None:
    """Deliver to URL, and show the secret that signs deliveries; it cannot be shown again."""
    if (kind and no_events) or (change and no_changes):
        raise click.UsageError("--no-events excludes --kind, and --no-changes excludes --change")
    order = WebhookOrder(
        url=url,
        description=description,
        event_kinds=[] if no_events else list(kind) or None,
        changes=[] if no_changes else list(map(ChangeKind, change)) or None,
    )

    async def body(webhooks: Webhooks, users: KeyRing) -> tuple[Subscription, Secret]:
        user_id = await users.find_user(user)
        if user_id is None:
            raise CommandFailed(f"there is no user `{user}`", "run `agentsvc keys list`")
        return await webhooks.add(user_id, order)

    directory = where.data_directory().path
    with secret_output(output, directory, "webhook-secret") as shown:
        made, secret = _run(where, body)
        shown.tell(f"webhook {made.id} of user `{user}`, its secret", secret.reveal())


@command.command(epilog=example("agentsvc webhooks enable ID"))
@click.argument("webhook_id", metavar="ID")
@where_options
def enable(webhook_id: str, where: ConfigOptions) -> None:
    """Resume deliveries to the webhook with this ID, first those pending when it was disabled."""
    _switch(webhook_id, where, is_enabled=True)


@command.command(epilog=example("agentsvc webhooks disable ID"))
@click.argument("webhook_id", metavar="ID")
@where_options
def disable(webhook_id: str, where: ConfigOptions) -> None:
    """Stop deliveries to the webhook with this ID until it is enabled."""
    _switch(webhook_id, where, is_enabled=False)


@command.command(epilog=example("agentsvc webhooks rotate ID"))
@click.argument("webhook_id", metavar="ID")
@output_option
@where_options
def rotate(webhook_id: str, output: str | None, where: ConfigOptions) -> None:
    """Replace the secret of the webhook with this ID, and show the new one, which is shown once.

    For `webhooks.rotation_seconds`, deliveries are also signed with the former secret, so that the
    receiver has time to change to the new one.
    """
    directory = where.data_directory().path
    with secret_output(output, directory, "webhook-secret") as shown:
        changed, secret = _as_owner(webhook_id, where, Webhooks.rotate)
        until = f"{changed.former_until:%Y-%m-%d %H:%M:%S} UTC"
        what = f"webhook {webhook_id}, the former secret signs as well until {until}; the new one"
        shown.tell(what, secret.reveal())


@command.command(epilog=example("agentsvc webhooks remove ID"))
@click.argument("webhook_id", metavar="ID")
@where_options
def remove(webhook_id: str, where: ConfigOptions) -> None:
    """Delete the webhook with an ID of `agentsvc webhooks list`, and its deliveries."""
    _as_owner(webhook_id, where, Webhooks.remove)
    click.echo(f"webhook {webhook_id} is removed", err=True)


@command.command(epilog=example("agentsvc webhooks deliveries ID --state failed"))
@click.argument("webhook_id", metavar="ID")
@click.option("--state", type=_STATES, help="Only deliveries in this state.")
@click.option("--limit", default=50, type=click.IntRange(1, 1000), help="Page size; default 50.")
@json_option
@where_options
def deliveries(
    webhook_id: str, state: str | None, limit: int, *, as_json: bool, where: ConfigOptions
) -> None:
    """List the newest deliveries of the webhook with this ID."""
    wanted = DeliveryState(state) if state else None
    search = partial(Webhooks.deliveries, state=wanted, page_id=None, limit=limit)
    found, _ = _as_owner(webhook_id, where, search)
    rows = [
        (
            one.id,
            f"{one.created_at:%Y-%m-%d %H:%M:%S}",
            one.type,
            one.lane,
            "" if one.seq is None else str(one.seq),
            one.state.value,
            str(one.attempts),
            one.reason,
        )
        for one in found
    ]
    head = ("ID", "CREATED (UTC)", "TYPE", "ABOUT", "EVENT", "STATE", "TRIES", "REASON")
    print_table(head, rows, as_json=as_json)


@command.command(epilog=example("agentsvc webhooks replay ID --failed"))
@click.argument("webhook_id", metavar="ID")
@click.argument("delivery_id", metavar="[DELIVERY]", required=False)
@click.option("--failed", is_flag=True, help="All failed deliveries.")
@where_options
def replay(webhook_id: str, delivery_id: str | None, failed: bool, where: ConfigOptions) -> None:
    """Repeat a delivery of the webhook with this ID, or all failed ones."""
    if failed == bool(delivery_id):
        raise click.UsageError("name a delivery, or use --failed for all failed ones")
    count = 1
    if delivery_id is None:
        count = _as_owner(webhook_id, where, Webhooks.replay_failed)
    else:
        _as_owner(webhook_id, where, partial(Webhooks.replay, delivery_id=delivery_id))
    click.echo(f"deliveries to repeat: {count}", err=True)


def _line(subscription: Subscription, user: str) -> tuple[str, ...]:
    kinds = subscription.event_kinds
    return (
        subscription.id,
        user,
        subscription.url,
        "all" if kinds is None else ",".join(kinds) or "none",
        ",".join(subscription.changes) or "none",
        _state(subscription),
    )


def _state(subscription: Subscription) -> str:
    if subscription.is_enabled:
        return "active"
    reason = subscription.disabled_reason
    return f"disabled: {reason}" if reason else "disabled"


def _switch(webhook_id: str, where: ConfigOptions, *, is_enabled: bool) -> None:
    _as_owner(webhook_id, where, partial(Webhooks.update, wanted={"is_enabled": is_enabled}))
    click.echo(f"webhook {webhook_id} is {'enabled' if is_enabled else 'disabled'}", err=True)


def _as_owner[T](
    webhook_id: str, where: ConfigOptions, do: Callable[[Webhooks, str, str], Awaitable[T]]
) -> T:
    """Run an operation on a webhook as its owner."""

    async def body(webhooks: Webhooks, _users: KeyRing) -> T:
        found = await webhooks.find(webhook_id)
        if found is None:
            raise CommandFailed(
                f"there is no webhook {webhook_id}", "run `agentsvc webhooks list` to see them"
            )
        return await do(webhooks, found.user_id, webhook_id)

    return _run(where, body)


def _run[T](where: ConfigOptions, body: Callable[[Webhooks, KeyRing], Awaitable[T]]) -> T:
    loaded = where.load()
    places = existing_data_dir(loaded)

    async def opened() -> T:
        async with await Installation.open(places) as installation:
            database, vault = installation.database, installation.vault
            config = settings_of(loaded.config, "webhooks", WebhooksConfig)
            webhooks = Webhooks(database, vault, config)
            return await body(webhooks, KeyRing(database))

    return asyncio.run(opened())
