"""Finds, loads and checks plugins; knows the backends and specs they offer; tells them events.

Nothing else imports a plugin or a backend class by name. What a plugin may do is in
`agentsvc.hookspecs`; what a backend must do is in `agentsvc.backend`.
"""

import asyncio
import importlib.metadata
import importlib.util
import inspect
import logging
import os
import stat
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec
import pluggy

from agentsvc import hookspecs
from agentsvc.backend import (
    API_VERSION,
    BackendContext,
    Capability,
    FindKey,
    Health,
    RuntimeBackend,
    Spec,
    no_key,
)
from agentsvc.backends import process
from agentsvc.config import Config
from agentsvc.errors import AgentsvcError, BackendUnavailable, OrderRejected, StartFailed
from agentsvc.hookspecs import NAME, Event
from agentsvc.sandboxconfig import RoomConfig

log = logging.getLogger(__name__)

BUILT_IN: Final = "built-in"
EVENT_SECONDS: Final = 5.0
"""How long a plugin may take over one event."""

_QUEUE_SIZE = 1000
_PACKAGE = "agentsvc_plugins"
_POOL_KEY: Final = "pool"
_ROOM_KEYS: Final = frozenset(RoomConfig.__struct_fields__)

type Backend = RuntimeBackend[Any]
type BackendType = type[RuntimeBackend[Any]]


class Plugin(msgspec.Struct, frozen=True, kw_only=True):
    """One plugin that was loaded, and what it offers."""

    name: str
    version: str
    origin: str
    """"built-in", the distribution of an entry point, or a file."""
    hooks: tuple[str, ...] = ()
    backends: tuple[BackendType, ...] = ()
    specs: tuple[Spec, ...] = ()


def installed_points() -> Iterator[importlib.metadata.EntryPoint]:
    """Return what the packages of this Python offer as plugins; looks at all of them.

    Where a package is there twice, the one that Python imports counts.
    """
    for found in importlib.metadata.distributions():
        # Few say it, and to take all of their texts apart takes longer than to read them.
        text = found.read_text("entry_points.txt") or ""
        if f"[{NAME}]" in text:
            first = importlib.metadata.distribution(found.name)
            if first.read_text("entry_points.txt") == text:
                yield from found.entry_points.select(group=NAME)


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
        is_traced: bool = False,
    ) -> "PluginHost":
        """Load the built-in plugins, those of installed packages, then those of each directory.

        Raises StartFailed for whatever does not import, does not fit, or exists twice: a plugin
        that is silently absent costs more than a start that fails. Names in `disable` are not
        even imported. `points` is what installed packages offer, for who has looked already.
        """
        host = cls(is_traced=is_traced)
        if "process" not in disable:
            host.add("process", process, version="", origin=BUILT_IN)
        offered = installed_points() if points is None else points
        for point in sorted(offered, key=lambda point: point.name):
            if point.name not in disable:
                host._add_entry_point(point)
        for directory in (*_bundled(), *dirs):
            for name, file in _files(directory):
                if name not in disable:
                    host._add_file(name, file)
        return host

    def add(self, name: str, plugin: object, *, version: str, origin: str) -> None:
        """Register one plugin and collect what it offers; raises StartFailed."""
        if name in self._plugins:
            raise StartFailed(
                f"Two plugins are called `{name}`: {self._plugins[name].origin} and {origin}",
                hint=f"put `{name}` into plugins.disable or remove one of them",
            )
        with _blame(name, origin):
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

    def plugins(self) -> list[Plugin]:
        """Return the plugins in the order they were loaded."""
        return list(self._plugins.values())

    def backend_types(self) -> dict[str, BackendType]:
        """Return the backend classes by name, those of another API version included."""
        return {kind.name: kind for plugin in self.plugins() for kind in plugin.backends}

    def specs(self) -> list[Spec]:
        """Return the specs that plugins offer."""
        return [spec for plugin in self.plugins() for spec in plugin.specs]

    def listeners(self) -> list[tuple[str, pluggy.HookCaller]]:
        """Return a caller of `agentsvc_on_event` for each plugin that implements it."""
        return [
            (plugin.name, self._only(plugin.name, "agentsvc_on_event"))
            for plugin in self.plugins()
            if "agentsvc_on_event" in plugin.hooks
        ]

    def _add_entry_point(self, point: importlib.metadata.EntryPoint) -> None:
        distribution = point.dist
        origin = distribution.name if distribution else point.value
        version = distribution.version if distribution else ""
        with _blame(point.name, origin):
            plugin = point.load()
        self.add(point.name, plugin, version=version, origin=origin)

    def _add_file(self, name: str, file: Path) -> None:
        with _blame(name, str(file)):
            module = _import(name, file)
        version = str(getattr(module, "__version__", ""))
        self.add(name, module, version=version, origin=str(file))

    def _callers(self, plugin: object) -> list[pluggy.HookCaller]:
        return self._manager.get_hookcallers(plugin) or []

    def _only(self, name: str, hook: str) -> pluggy.HookCaller:
        others = [other for key, other in self._manager.list_name_plugin() if key != name]
        return self._manager.subset_hook_caller(hook, others)

    def _collect(self, name: str, hook: str) -> Iterator[Any]:
        for offered in self._only(name, hook)():
            yield from offered

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


class BackendRegistry:
    """The backends this server uses, by the names of their config tables, and the specs."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        specs: Sequence[Spec],
        rooms: Mapping[str, RoomConfig] | None = None,
        pools: Mapping[str, tuple[str, ...]] | None = None,
        offered: Sequence[Spec] = (),
    ) -> None:
        self._backends = dict(backends)
        self._pools = dict(pools or {})
        self._offered = list(offered)
        self._health: dict[str, Health] = {}
        self._rooms = dict(rooms or {})
        self._specs = list(specs)
        self._open: set[str] = set()

    @classmethod
    def build(
        cls,
        host: PluginHost,
        config: Config,
        *,
        instance_id: str,
        state_dir: Path,
        owner_key: FindKey = no_key,
    ) -> "BackendRegistry":
        """Make the configured backends and put the specs in order, the default one first.

        The built-in backend needs no table. Raises StartFailed for a table, a spec or a default
        that does not fit.
        """
        types = host.backend_types()
        tables = {**({"process": {}} if "process" in types else {}), **config.backends}
        pools = {name: _pool(name, tables) for name, table in tables.items() if _POOL_KEY in table}
        tables = {name: table for name, table in tables.items() if name not in pools}
        rooms = {name: _room(name, table) for name, table in tables.items()}
        context = BackendContext(
            instance_id=instance_id,
            state_dir=state_dir,
            callback_url=config.server.internal_url,
            public_url=config.server.public_url,
            owner_key=owner_key,
        )
        backends = {name: _make(name, table, types, context) for name, table in tables.items()}
        default = config.sandboxes.default_backend
        if default not in backends and default not in pools:
            raise StartFailed(
                f"sandboxes.default_backend is `{default}`, and there is no such backend",
                hint=f"add a table [backends.{default}] or choose one of: {_list(backends)}",
            )
        specs = _ordered_specs(host, config, backends, pools)
        return cls(backends, specs, rooms, pools, host.specs())

    async def open(self) -> None:
        """Open every backend that is not open; one that cannot be reached is logged and stays so.

        Call it again, now and then, to get that one back.
        """
        for name, backend in self._backends.items():
            if name in self._open:
                continue
            try:
                await backend.open()
            except BackendUnavailable as exc:
                log.warning(
                    "backend cannot be opened",
                    extra={"backend": name, "reason": f"{exc.message} {exc.detail}".strip()},
                )
            else:
                self._open.add(name)

    async def close(self) -> None:
        """Close every backend; sandboxes keep running."""
        self._open.clear()
        for backend in self._backends.values():
            await backend.close()

    def names(self) -> list[str]:
        """Return the names of the configured backends."""
        return list(self._backends)

    def members(self, name: str) -> tuple[str, ...]:
        """Return the backends of a group, or the one backend of this name."""
        return self._pools.get(name, (name,))

    def health(self) -> Mapping[str, Health]:
        """Return how each backend that belongs to a group was when it was last asked."""
        return self._health

    async def check_health(self, time_limit: float) -> None:
        """Ask every backend that belongs to a group how it is; called now and then."""
        names = sorted({member for pool in self._pools.values() for member in pool})
        found = await asyncio.gather(*(self._ask_health(name, time_limit) for name in names))
        for name, health in zip(names, found, strict=True):
            if self._health.get(name, Health(ok=True)).ok is not health.ok:
                log.log(
                    logging.INFO if health.ok else logging.WARNING,
                    "backend takes sandboxes again" if health.ok else "backend takes no sandboxes",
                    extra={"backend": name, "reason": health.reason},
                )
            self._health[name] = health

    def complete(self, spec: Spec, name: str) -> Spec:
        """Return a spec as it is at one backend of a group."""
        own = msgspec.structs.replace(spec, backend=name)
        kind = type(self._backends[name]).name
        base = [item for item in self._offered if item.backend == kind]
        bases = [msgspec.structs.replace(item, backend=name) for item in base]
        return _completed(own, bases, name)

    async def _ask_health(self, name: str, time_limit: float) -> Health:
        try:
            async with asyncio.timeout(time_limit):
                return await self.get(name).probe()
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        except TimeoutError:
            return Health(ok=False, reason=f"it gave no answer within {time_limit:g} s")

    def rooms(self) -> dict[str, RoomConfig]:
        """Return how much may run at a time at each configured backend."""
        return dict(self._rooms)

    def get(self, name: str) -> Backend:
        """Return an open backend; raises BackendUnavailable for one that is not, or is unknown.

        Sandboxes of a backend that was taken out of the config are out of reach, not gone.
        """
        backend = self._backends.get(name)
        if backend is None:
            raise BackendUnavailable(f"The backend `{name}` is not configured")
        if name not in self._open:
            raise BackendUnavailable(f"The backend `{name}` cannot be reached")
        return backend

    def specs(self) -> list[Spec]:
        """Return the sandbox templates, the default one first."""
        return list(self._specs)

    async def probe(self) -> dict[str, Health]:
        """Ask each backend whether it could create a sandbox now."""
        found = {}
        for name in self._backends:
            try:
                found[name] = await self.get(name).probe()
            except AgentsvcError as exc:
                found[name] = Health(ok=False, reason=exc.message)
        return found


class Notifier:
    """Tells plugins what has happened, in order, one plugin after another."""

    def __init__(self, host: PluginHost, *, time_limit: float = EVENT_SECONDS) -> None:
        self._listeners = host.listeners()
        self._time_limit = time_limit
        self._queue: asyncio.Queue[Event] = asyncio.Queue(_QUEUE_SIZE)

    def publish(self, event: Event) -> None:
        """Have an event told soon; call it after the event's transaction has committed."""
        if not self._listeners:
            return
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            log.warning("plugins are too slow, an event is not told", extra={"event": event.kind})

    async def run(self) -> None:
        """Tell published events until cancelled."""
        while True:
            await self.tell(await self._queue.get())

    async def tell(self, event: Event) -> None:
        """Tell every plugin one event; a failure or a hang harms nobody else and is logged."""
        for name, call in self._listeners:
            try:
                async with asyncio.timeout(self._time_limit):
                    for result in call(event=event):
                        if inspect.isawaitable(result):
                            await result
            except Exception:
                log.exception("plugin failed", extra={"plugin": name, "event": event.kind})


# Loading


@contextmanager
def _blame(name: str, origin: str) -> Iterator[None]:
    try:
        yield
    except StartFailed as exc:
        raise StartFailed(f"Plugin `{name}` ({origin}): {exc.message}", hint=exc.hint) from exc
    except (Exception, SystemExit) as exc:  # a plugin may raise anything; all of it stops the start
        raise StartFailed(
            f"Plugin `{name}` ({origin}) cannot be loaded: {type(exc).__name__}: {exc}",
            hint=f"put `{name}` into plugins.disable to start without it",
        ) from exc


def _bundled() -> list[Path]:
    # In the wheel the first-party plugins lie inside the package, in a source tree beside it.
    package = Path(__file__).parent
    if (package / "_plugins").is_dir():
        return [package / "_plugins"]
    is_source_tree = (package.parent / "pyproject.toml").is_file()
    beside = package.parent / "plugins"
    return [beside] if is_source_tree and beside.is_dir() else []


def _files(directory: Path) -> list[tuple[str, Path]]:
    try:
        info = directory.stat()
        entries = sorted(directory.iterdir())
    except OSError as exc:
        raise StartFailed(
            f"The plugins directory {directory} cannot be read: {exc.strerror}",
            hint="correct plugins.dirs",
        ) from exc
    if info.st_mode & stat.S_IWOTH or info.st_uid not in (0, os.getuid()):
        raise StartFailed(
            f"The plugins directory {directory} can be written to by others",
            hint=f"run `chmod o-w {directory}` and make sure it is yours",
        )
    found = []
    for entry in entries:
        if entry.name.startswith(("_", ".")):
            continue
        if entry.suffix == ".py":
            found.append((entry.stem, entry))
        elif (entry / "__init__.py").is_file():
            found.append((entry.name, entry / "__init__.py"))
    return found


def _import(name: str, file: Path) -> ModuleType:
    # The module is in sys.modules before it runs, so that annotations can be resolved, and under
    # a name of ours, so that plugins/docker.py does not shadow a library called docker.
    if _PACKAGE not in sys.modules:
        package = ModuleType(_PACKAGE)
        package.__path__ = []
        sys.modules[_PACKAGE] = package
    full_name = f"{_PACKAGE}.{name}"
    spec = importlib.util.spec_from_file_location(full_name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[full_name]
        raise
    return module


def _check_class(kind: BackendType) -> None:
    if missing := kind.__abstractmethods__:
        raise StartFailed(f"{kind.__name__} lacks {_list(missing)}")
    wanted: dict[str, type] = {"name": str, "api_version": int, "capabilities": frozenset}
    for attribute, expected in wanted.items():
        if not isinstance(getattr(kind, attribute, None), expected):
            raise StartFailed(f"{kind.__name__} does not say its `{attribute}`")
    if not all(isinstance(item, Capability) for item in kind.capabilities):
        raise StartFailed(f"{kind.__name__} has a capability that does not exist")
    config = getattr(kind, "Config", None)
    if not (isinstance(config, type) and issubclass(config, msgspec.Struct)):
        raise StartFailed(f"{kind.__name__} does not say its `Config`")
    if not config.__struct_config__.forbid_unknown_fields:
        raise StartFailed(f"{kind.__name__}.Config must set forbid_unknown_fields")


def _trace_call(hook: str, _impls: Sequence[Any], arguments: Mapping[str, Any]) -> None:
    log.info("hook called", extra={"hook": hook, "arguments": repr(dict(arguments))})


def _trace_result(
    outcome: pluggy.Result[Any], hook: str, _impls: Sequence[Any], _arguments: Mapping[str, Any]
) -> None:
    result = repr(outcome.exception) if outcome.exception else repr(outcome.get_result())
    log.info("hook answered", extra={"hook": hook, "result": result})


# Backends and specs


def _pool(name: str, tables: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the members of a group of backends; raises StartFailed for what is none."""
    table = tables[name]
    members = table[_POOL_KEY]
    if not isinstance(members, list | tuple) or not members:
        raise StartFailed(
            f"backends.{name}.pool is not a list of backends",
            hint='write the names of their tables, such as `pool = ["big", "small"]`',
        )
    if more := table.keys() - {_POOL_KEY}:
        raise StartFailed(
            f"backends.{name} is a group of backends and takes nothing but `pool`: {_list(more)}",
            hint="write what is for one backend into its own table",
        )
    for member in members:
        if member not in tables or _POOL_KEY in tables[member]:
            raise StartFailed(
                f"backends.{name}.pool names `{member}`, and there is no such backend",
                hint=f"add a table [backends.{member}]; a group takes no other group",
            )
    return tuple(dict.fromkeys(members))


def _make(
    name: str,
    table: Mapping[str, Any],
    types: Mapping[str, BackendType],
    base: BackendContext,
) -> Backend:
    values = {key: value for key, value in table.items() if key not in _ROOM_KEYS}
    type_name = values.pop("type", name)
    kind = types.get(type_name)
    if kind is None:
        raise StartFailed(
            f"backends.{name} is of type `{type_name}`, and no plugin offers that",
            hint=f"set `type` to one of: {_list(types)}",
        )
    if kind.api_version != API_VERSION:
        raise StartFailed(
            f"The backend `{type_name}` is written for version {kind.api_version} of the contract,"
            f" this server speaks {API_VERSION}",
            hint=f"update the plugin that offers `{type_name}`",
        )
    try:
        # Values from the environment are texts.
        config = msgspec.convert(values, kind.Config, strict=False)
    except msgspec.ValidationError as exc:
        raise StartFailed(
            f"The table [backends.{name}] does not fit: {exc}",
            hint=f"its keys are: {_list(kind.Config.__struct_fields__)}",
        ) from exc
    context = msgspec.structs.replace(base, state_dir=base.state_dir / name)
    return kind(config, context)


def _room(name: str, table: Mapping[str, Any]) -> RoomConfig:
    values = {key: value for key, value in table.items() if key in _ROOM_KEYS}
    try:
        return msgspec.convert(values, RoomConfig, strict=False)
    except msgspec.ValidationError as exc:
        raise StartFailed(
            f"The table [backends.{name}] does not fit: {exc}",
            hint="max_running and max_memory_bytes are whole numbers, 0 for no limit",
        ) from exc


def _ordered_specs(
    host: PluginHost,
    config: Config,
    backends: Mapping[str, Backend],
    pools: Mapping[str, tuple[str, ...]],
) -> list[Spec]:
    default_backend = config.sandboxes.default_backend
    offered = [spec for spec in host.specs() if (spec.backend or default_backend) in backends]
    specs: dict[str, Spec] = {}
    for table, entry in config.specs.items():
        fields = {**msgspec.to_builtins(entry), "id": entry.id or table}
        spec = _completed(msgspec.convert(fields, Spec), offered, default_backend)
        if (spec.backend or default_backend) not in pools:
            _check_configured(table, spec, backends, default_backend)
        specs[spec.id] = spec
    for spec in offered:
        specs.setdefault(spec.id, spec)
    default = config.sandboxes.default_spec
    if default and default not in specs:
        raise StartFailed(
            f"sandboxes.default_spec is `{default}`, and there is no such spec",
            hint=f"choose one of: {_list(specs)}",
        )

    def rank(spec: Spec) -> tuple[bool, bool]:
        return spec.id != default, (spec.backend or default_backend) != default_backend

    return sorted(specs.values(), key=rank)


def _completed(spec: Spec, offered: Iterable[Spec], default_backend: str) -> Spec:
    # Who only adds a variable need not repeat the command and the ports it comes with.
    if spec.command is not None or spec.image or spec.ports:
        return spec
    name = spec.backend or default_backend
    for base in offered:
        if (base.backend or default_backend) == name:
            env = {**base.env, **spec.env}
            return msgspec.structs.replace(spec, command=base.command, ports=base.ports, env=env)
    return spec


def _check_configured(
    table: str, spec: Spec, backends: Mapping[str, Backend], default_backend: str
) -> None:
    name = spec.backend or default_backend
    if name not in backends:
        raise StartFailed(
            f"specs.{table} is for the backend `{name}`, and there is no such backend",
            hint=f"choose one of: {_list(backends)}, or a group of them",
        )
    try:
        backends[name].check_spec(spec)
    except OrderRejected as exc:
        raise StartFailed(f"specs.{table} does not fit: {exc.message}") from exc


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
