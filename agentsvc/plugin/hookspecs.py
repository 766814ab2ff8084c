"""The hooks a plugin may implement, the Event they carry, and the marker for implementations.

Public. Hooks register things and tell about things; none of them is asked to do the work of a
request. A plugin implements a hook with a plain function of the same name, marked `@hookimpl`.
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
    """Return a hook that offers what is at each `MODULE:NAME`, imported when it is asked: that takes time."""

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
"""What events there are; `plugins/README.md` says what each has in its `data`."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin sees of an event; the server's own event structs are richer."""

    id: str
    """Sorts by time; a plugin stores the last one it handled."""
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
    """Return sandbox templates to offer next to those in the config file.

    Called once at start-up. The config file wins when an id is the same; two plugins with the
    same id stop the start.
    """


@hookspec
def agentsvc_register_extensions() -> Iterable[type]:  # type: ignore[empty-body]  # only its signature is used
    """Return what this plugin adds to the server: subclasses of `agentsvc.extension.server.Extension`.

    Called when a server is made, or its API is described. Import them here, not before.
    """


@hookspec
def agentsvc_register_commands() -> "Iterable[click.Command]":  # type: ignore[empty-body]  # only its signature is used
    """Return subcommands of `agentsvc`.

    Called by the command line only: when one of them is called, or all of them are listed. Import
    them here, not before.
    """


@hookspec
def agentsvc_on_event(event: Event) -> Awaitable[None] | None:
    """Hear about one event after it was stored.

    The result is ignored. Raising is logged and harms nobody else. Return a coroutine to wait
    for something; it is cancelled after five seconds. Not called again for events from before
    a restart.
    """
