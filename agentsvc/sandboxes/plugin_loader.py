"""Finds, loads and validates plugins, collects their backends and specs, and sends them events.

Nothing else imports a plugin or a backend class by name. What a plugin may do is in
`agentsvc.plugin.hookspecs`; what a backend must do is in `agentsvc.plugin.backend`.
"""

import asyncio
import importlib.metadata
import inspect
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import pluggy

from agentsvc.base import StartFailed, is_cancelled
from agentsvc.plugin import (
    NAME,
    Capability,
    Event,
    PluginFile,
    RuntimeBackend,
    Spec,
    bundled,
    hookspecs,
    import_file,
    is_needed,
    keep_old_names,
    plugins_in,
)

log = logging.getLogger(__name__)

BUILT_IN: Final = "built-in"
EVENT_SECONDS: Final = 5.0
"""Timeout of a plugin's handler for one event."""

_QUEUE_SIZE = 1000

type Backend = RuntimeBackend[Any]
type BackendType = type[RuntimeBackend[Any]]


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded plugin and the hooks, backends and specs it provides."""

    name: str
    version: str
    origin: str
    """"built-in", the distribution of an entry point, or a file."""
    hooks: tuple[str, ...] = ()
    backends: tuple[BackendType, ...] = ()
    specs: tuple[Spec, ...] = ()


def installed_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Yield the plugin entry points of all installed distributions.

    If a distribution is installed twice, the one that Python imports counts. A damaged
    distribution without such entry points is ignored.
    """
    names = {
        re.sub(r"[-_.]+", "-", found.name).lower()
        for found in importlib.metadata.distributions()
        if f"[{NAME}]" in (found.read_text("entry_points.txt") or "")
    }
    for name in names:
        yield from importlib.metadata.distribution(name).entry_points.select(group=NAME)


class PluginHost:
    """All plugins of one server."""

    def __init__(self, *, is_traced: bool = False) -> None:
        self._manager = pluggy.PluginManager(NAME)
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, Plugin] = {}
        if is_traced:
            self._manager.add_hookcall_monitoring(_trace_call, _trace_result)

    @classmethod
    def load(
        cls,
        *,
        dirs: Sequence[Path] = (),
        disable: Collection[str] = (),
        points: Iterable[importlib.metadata.EntryPoint] | None = None,
        kinds: frozenset[str] | None = None,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        environ: Mapping[str, str] | None = None,
        is_traced: bool = False,
    ) -> "PluginHost":
        """Load the built-in plugins, those of installed packages, then those of each directory.

        Raises StartFailed for a plugin that cannot be imported, is invalid, or exists twice: a plugin
        that is silently absent costs more than a start that fails. Plugins in `disable` are not even
        imported. `points` are the entry points of installed packages, if the caller has them already.
        With `kinds`, the kinds of the configured backends, plugins are skipped if their manifests
        say that a server with these settings and this environment does not need them.
        """
        keep_old_names()
        host = cls(is_traced=is_traced)
        offered = list(installed_points() if points is None else points)
        for point in sorted(offered, key=lambda point: point.name):
            if point.name not in disable:
                host._add_entry_point(point)
        found = [*bundled(), *chain.from_iterable(map(plugins_in, dirs))]
        if unknown := {*disable} - {it.name for it in offered} - {it.name for it in found}:
            log.warning("plugins.disable names no plugin: %s", listed(unknown))
        for file in found:
            if file.name not in disable and (
                kinds is None
                or is_needed(file, kinds=kinds, settings=settings or {}, environ=environ or {})
            ):
                host.add_file(file)
        return host

    def add(self, name: str, plugin: object, *, version: str, origin: str) -> None:
        """Register a plugin and collect its backends and specs; raises StartFailed."""
        if name in self._plugins:
            raise StartFailed(
                f"Two plugins are called `{name}`: {self._plugins[name].origin} and {origin}",
                hint=f"put `{name}` into plugins.disable or remove one of them",
            )
        with _naming_plugin(name, origin):
            self._manager.register(plugin, name=name)
            self._manager.check_pending()
            added = Plugin(
                name=name,
                version=version,
                origin=origin,
                hooks=tuple(sorted(caller.name for caller in self._callers(plugin))),
                backends=tuple(self._collect(name, "agentsvc_register_backends")),
                specs=tuple(self._collect(name, "agentsvc_register_specs")),
            )
            for backend in added.backends:
                _check_class(backend)
        self._plugins[name] = added
        self._check_unique()

    def add_file(self, file: PluginFile) -> None:
        """Import a plugin and register it; raises StartFailed."""
        origin = BUILT_IN if file in bundled() else str(file.path)
        with _naming_plugin(file.name, origin):
            module = import_file(file.name, file.path)
        version = str(getattr(module, "__version__", ""))
        self.add(file.name, module, version=version, origin=origin)

    def plugins(self) -> list[Plugin]:
        """Return the plugins in load order."""
        return list(self._plugins.values())

    def backend_types(self) -> dict[str, BackendType]:
        """Return the backend classes by name, including those for another API version."""
        return {kind.name: kind for plugin in self.plugins() for kind in plugin.backends}

    def specs(self) -> list[Spec]:
        """Return the specs that plugins provide."""
        return [spec for plugin in self.plugins() for spec in plugin.specs]

    def extensions(self) -> list[tuple[str, type]]:
        """Return the server extensions of plugins, each with its plugin's name."""
        return list(self._offered("agentsvc_register_extensions"))

    def commands(self) -> list[tuple[str, Any]]:
        """Return the subcommands that plugins provide, each with its plugin's name."""
        return list(self._offered("agentsvc_register_commands"))

    def listeners(self) -> list[tuple[str, pluggy.HookCaller]]:
        """Return a caller of `agentsvc_on_event` for each plugin that implements it."""
        return [
            (plugin.name, self._caller_for(plugin.name, "agentsvc_on_event"))
            for plugin in self.plugins()
            if "agentsvc_on_event" in plugin.hooks
        ]

    def _add_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        distribution = point.dist
        origin = distribution.name if distribution else point.value
        version = distribution.version if distribution else ""
        with _naming_plugin(point.name, origin):
            plugin = point.load()
        self.add(point.name, plugin, version=version, origin=origin)

    def _callers(self, plugin: object) -> list[pluggy.HookCaller]:
        return self._manager.get_hookcallers(plugin) or []

    def _caller_for(self, name: str, hook: str) -> pluggy.HookCaller:
        others = [other for key, other in self._manager.list_name_plugin() if key != name]
        return self._manager.subset_hook_caller(hook, others)

    def _collect(self, name: str, hook: str) -> Iterator[Any]:
        for offered in self._caller_for(name, hook)():
            yield from offered

    def _offered(self, hook: str) -> Iterator[tuple[str, Any]]:
        for plugin in self.plugins():
            if hook in plugin.hooks:
                with _naming_plugin(plugin.name, plugin.origin):
                    offers = list(self._collect(plugin.name, hook))
                yield from ((plugin.name, offer) for offer in offers)

    def _check_unique(self) -> None:
        seen: dict[tuple[str, str], str] = {}
        for plugin in self.plugins():
            offers = [("backend", kind.name) for kind in plugin.backends]
            offers += [("spec", spec.id) for spec in plugin.specs]
            for offer in offers:
                if offer in seen:
                    raise StartFailed(
                        f"The {offer[0]} `{offer[1]}` exists twice:"
                        f" in {seen[offer]} and in {plugin.origin}",
                        hint=f"put one of the plugins into plugins.disable, such as `{plugin.name}`",
                    )
                seen[offer] = plugin.origin


class Notifier:
    """Sends events to plugins; each has its own queue and receives events in order."""

    def __init__(self, host: PluginHost, *, time_limit: float = EVENT_SECONDS) -> None:
        self._listeners = [_Listener(name, call, time_limit) for name, call in host.listeners()]

    @property
    def has_listeners(self) -> bool:
        """Whether any plugin listens for events."""
        return bool(self._listeners)

    def publish(self, event: Event) -> None:
        """Queue an event for all plugins; call it after the event's transaction has committed."""
        for listener in self._listeners:
            listener.publish(event)

    async def run(self) -> None:
        """Deliver queued events until cancelled."""
        await asyncio.gather(*(listener.run() for listener in self._listeners))

    async def tell(self, event: Event) -> None:
        """Deliver one event to every plugin; a failure or timeout is logged and affects no other."""
        await asyncio.gather(*(listener.tell(event) for listener in self._listeners))


class _Listener:
    """A plugin that listens for events, with its queue of undelivered ones."""

    def __init__(self, name: str, call: pluggy.HookCaller, time_limit: float) -> None:
        self._name = name
        self._call = call
        self._time_limit = time_limit
        self._queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUE_SIZE)

    def publish(self, event: Event) -> None:
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            log.warning(
                "event dropped, plugin is too slow",
                extra={"plugin": self._name, "event": event.kind},
            )

    async def run(self) -> None:
        while True:
            await self.tell(await self._queue.get())

    async def tell(self, event: Event) -> None:
        try:
            async with asyncio.timeout(self._time_limit):
                for result in self._call(event=event):
                    if inspect.isawaitable(result):
                        await result
        except asyncio.CancelledError:
            # The plugin may have awaited something that was cancelled.
            if is_cancelled():
                raise
            log.warning("plugin failed", extra={"plugin": self._name, "event": event.kind})
        except (Exception, SystemExit):
            log.exception("plugin failed", extra={"plugin": self._name, "event": event.kind})


# Loading


@contextmanager
def _naming_plugin(name: str, origin: str) -> Iterator[None]:
    try:
        yield
    except StartFailed as exc:
        raise StartFailed(f"Plugin `{name}` ({origin}): {exc.message}", hint=exc.hint) from exc
    except (Exception, SystemExit) as exc:  # a plugin may raise anything; all of it stops the start
        raise StartFailed(
            f"Plugin `{name}` ({origin}) cannot be loaded: {type(exc).__name__}: {exc}",
            hint=f"put `{name}` into plugins.disable to start without it",
        ) from exc


def _check_class(kind: BackendType) -> None:
    if missing := kind.__abstractmethods__:
        raise StartFailed(f"{kind.__name__} lacks {listed(missing)}")
    wanted: dict[str, type] = {"name": str, "api_version": int, "capabilities": frozenset}
    for attribute, expected in wanted.items():
        if not isinstance(getattr(kind, attribute, None), expected):
            raise StartFailed(f"{kind.__name__} does not define its `{attribute}`")
    if not all(isinstance(item, Capability) for item in kind.capabilities):
        raise StartFailed(f"{kind.__name__} has an unknown capability")
    config = getattr(kind, "Config", None)
    if not (isinstance(config, type) and issubclass(config, msgspec.Struct)):
        raise StartFailed(f"{kind.__name__} does not define its `Config`")
    if not config.__struct_config__.forbid_unknown_fields:
        raise StartFailed(f"{kind.__name__}.Config must set forbid_unknown_fields")


def _trace_call(hook: str, _impls: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    log.info("hook called", extra={"hook": hook, "arguments": repr(dict(arguments))})


def _trace_result(
    outcome: pluggy.Result[Any], hook: str, _impls: Sequence[Any], _arguments: Mapping[str, Any]
) -> None:
    result = repr(outcome.exception) if outcome.exception else repr(outcome.get_result())
    log.info("hook returned", extra={"hook": hook, "result": result})


def listed(names: Iterable[str]) -> str:
    """Return names sorted and joined for a message, "none" if there are none."""
    return ", ".join(sorted(names)) or "none"
