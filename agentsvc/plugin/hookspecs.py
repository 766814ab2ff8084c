"""The hooks a plugin may implement, the Event they carry, and the marker for implementations.

Public. Hooks register components and report events; no hook takes part in a request. A plugin
implements a hook with a plain function of the same name, marked `@hookimpl`.
"""

import importlib
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pluggy

from agentsvc.plugin.backend import RuntimeBackend, Spec

if TYPE_CHECKING:
    import click

NAME: Final = "agentsvc"
"""The entry-point group of plugin packages and the name of the plugin manager."""

hookspec = pluggy.HookspecMarker(NAME)
hookimpl = pluggy.HookimplMarker(NAME)


def offers(*places: str) -> Callable[[], list[Any]]:
    """Return a hook that imports and returns each `MODULE:NAME` only when the hook is called."""

    def offer() -> list[Any]:
        named = (place.partition(":") for place in places)
        return [getattr(importlib.import_module(module), name) for module, _, name in named]

    return hookimpl(offer)


EVENT_KINDS: Final = (
    "conversation.started",
    "conversation.start_failed",
    "conversation.changed",
    "conversation.deleted",
    "conversation.events",
    "sandbox.changed",
)
"""All kinds of events; `plugins/README.md` documents the `data` of each."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event as plugins receive it; the server's own event structs have more fields."""

    id: str
    """Sorts by time; a plugin can store the last one it handled."""
    kind: str
    """One of `EVENT_KINDS`."""
    at: datetime
    subject_id: str
    data: dict[str, Any] = {}
    """JSON, no secrets."""


@hookspec
def agentsvc_register_backends() -> Iterable[type[RuntimeBackend[Any]]]:  # type: ignore[empty-body]  # only its signature is used
    """Return the backend classes this plugin offers.

    Called once at start-up, before any backend is opened. Do no I/O and import no client
    library here: a backend that is installed but not configured must cost nothing.
    """


@hookspec
def agentsvc_register_specs() -> Iterable[Spec]:  # type: ignore[empty-body]  # only its signature is used
    """Return specs to offer in addition to those in the config file.

    Called once at start-up. A spec of the config file with the same id wins; two plugins with the
    same id are an error at start-up.
    """


@hookspec
def agentsvc_register_extensions() -> Iterable[type]:  # type: ignore[empty-body]  # only its signature is used
    """Return subclasses of `agentsvc.extension.server.Extension`: routes, tables, loops, settings.

    Called when a server is created, or its API is described. Import the classes here, not before.
    """


@hookspec
def agentsvc_register_commands() -> "Iterable[click.Command]":  # type: ignore[empty-body]  # only its signature is used
    """Return subcommands of `agentsvc`.

    Called by the command line only: when one of them is called, or all of them are listed. Import
    them here, not before.
    """


@hookspec
def agentsvc_on_event(event: Event) -> Awaitable[None] | None:
    """Handle one event after it was stored.

    The result is ignored. An exception is logged and affects no other plugin. A coroutine that is
    returned is awaited, and cancelled after five seconds. Events from before a restart are not
    repeated.
    """
