"""The configured backends, by the names of their config tables, and the sandbox specs.

`agentsvc.sandboxes.plugin_loader` provides the backend types.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected, StartFailed
from agentsvc.config import CapacityConfig, Config
from agentsvc.plugin import (
    API_VERSION,
    BackendContext,
    FindKey,
    Health,
    Spec,
    default_kinds,
    no_key,
)
from agentsvc.sandboxes.plugin_loader import Backend, BackendType, PluginHost, listed

log = logging.getLogger(__name__)

_POOL_KEY: Final = "pool"
_ROOM_KEYS: Final = frozenset(CapacityConfig.__struct_fields__)


class BackendRegistry(msgspec.Struct, eq=False):
    """The configured backends, by the names of their config tables, and the specs."""

    _backends: Mapping[str, Backend]
    _specs: Sequence[Spec]
    _rooms: Mapping[str, CapacityConfig] = {}
    _pools: Mapping[str, tuple[str, ...]] = {}
    _offered: Sequence[Spec] = ()
    _configured: Collection[str] = ()
    _health: dict[str, Health] = {}
    _open: set[str] = set()

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
        """Create the configured backends and sort the specs, default first.

        Backends of plugins that every server loads need no table. Raises StartFailed for an invalid
        table, spec or default.
        """
        types = host.backend_types()
        tables = {**{kind: {} for kind in default_kinds() & types.keys()}, **config.backends}
        pools = {name: _pool(name, tables) for name, table in tables.items() if _POOL_KEY in table}
        tables = {name: table for name, table in tables.items() if name not in pools}
        rooms = {name: _room(name, table) for name, table in tables.items()}
        context = BackendContext(
            instance_id=instance_id,
            state_dir=state_dir,
            callback_url=config.server.internal_url,
            public_url=config.server.public_url,
            owner_key=owner_key,
            keeps_checkpoints=config.sandboxes.checkpoints > 0,
        )
        backends = {name: _make(name, table, types, context) for name, table in tables.items()}
        default = config.sandboxes.default_backend
        if default not in backends and default not in pools:
            raise StartFailed(
                f"sandboxes.default_backend is `{default}`, and there is no such backend",
                hint=f"add a table [backends.{default}] or choose one of: {listed(backends)}",
            )
        specs = _ordered_specs(host, config, backends, pools)
        configured = [entry.id or table for table, entry in config.specs.items()]
        return cls(backends, specs, rooms, pools, host.specs(), configured)

    async def open(self) -> None:
        """Open every backend that is not open; log those that cannot be opened now.

        Call it periodically to retry those. Raises an AgentsvcError that no retry can mend.
        """
        for name, backend in self._backends.items():
            if name in self._open:
                continue
            try:
                await backend.open()
            except AgentsvcError as exc:
                if not exc.may_pass:
                    raise
                log.warning(
                    "backend cannot be opened",
                    extra={"backend": name, "reason": exc.log_text},
                )
            except (Exception, SystemExit):  # a plugin may raise anything; open the others
                log.exception("backend cannot be opened", extra={"backend": name})
            else:
                self._open.add(name)

    async def close(self) -> None:
        """Close every backend; sandboxes keep running."""
        self._open.clear()
        for name, backend in self._backends.items():
            try:
                await backend.close()
            except (Exception, SystemExit):  # a plugin may raise anything; close the others
                log.exception("backend cannot be closed", extra={"backend": name})

    def names(self) -> list[str]:
        """Return the names of the configured backends."""
        return list(self._backends)

    def members(self, name: str) -> tuple[str, ...]:
        """Return the backends of a group, or the name itself if it is no group."""
        return self._pools.get(name, (name,))

    def health(self) -> Mapping[str, Health]:
        """Return the last health check of each backend that belongs to a group."""
        return self._health

    async def check_health(self, time_limit: float) -> None:
        """Check the health of every backend that belongs to a group; called periodically."""
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
        """Return a spec for one backend of a group, with that backend's default command and ports."""
        kind = type(self._backends[name]).name
        bases = [replace(item, backend=name) for item in self._offered if item.backend == kind]
        return _completed(replace(spec, backend=name), bases)

    async def _ask_health(self, name: str, time_limit: float | None = None) -> Health:
        try:
            async with asyncio.timeout(time_limit):
                return await self.get(name).probe()
        except AgentsvcError as exc:
            return Health(ok=False, reason=exc.message)
        except TimeoutError:
            within = f"within {time_limit:g} s" if time_limit else "in time"
            return Health(ok=False, reason=f"it gave no answer {within}")
        except (Exception, SystemExit) as exc:  # a plugin may raise anything
            log.exception("backend failed", extra={"backend": name})
            return Health(ok=False, reason=f"it raised an unexpected error: {type(exc).__name__}")

    def runs_here(self, name: str) -> bool:
        """Return whether a backend, or any of a group, runs sandboxes on this server's machine."""
        members = (self._backends.get(member) for member in self.members(name))
        return any(backend is not None and backend.runs_here for backend in members)

    def rooms(self) -> dict[str, CapacityConfig]:
        """Return the capacity of each configured backend."""
        return dict(self._rooms)

    def find(self, name: str) -> Backend | None:
        """Return a backend if it is open."""
        return self._backends.get(name) if name in self._open else None

    def get(self, name: str) -> Backend:
        """Return an open backend; raises BackendUnavailable if it is not open or unknown.

        Sandboxes of a backend that was removed from the config are unreachable, not gone.
        """
        if backend := self.find(name):
            return backend
        why_not = "cannot be reached" if name in self._backends else "is not configured"
        raise BackendUnavailable(f"The backend `{name}` {why_not}")

    def specs(self) -> list[Spec]:
        """Return the specs, default first; each names its backend."""
        return list(self._specs)

    def configured_specs(self) -> list[Spec]:
        """Return the specs of the configuration, without those of plugins."""
        return [spec for spec in self._specs if spec.id in self._configured]

    async def probe(self) -> dict[str, Health]:
        """Return the health of each backend: whether it could create a sandbox now."""
        return {name: await self._ask_health(name) for name in self._backends}


def kinds_of(config: Config) -> frozenset[str]:
    """Return the types of the configured backends, including unknown types."""
    return frozenset(
        str(table.get("type", name))
        for name, table in config.backends.items()
        if _POOL_KEY not in table
    )


def _pool(name: str, tables: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the members of a group of backends; raises StartFailed if it is invalid."""
    table = tables[name]
    members = table[_POOL_KEY]
    if not isinstance(members, list | tuple) or not members:
        raise StartFailed(
            f"backends.{name}.pool is not a list of backends",
            hint='write the names of their tables, such as `pool = ["big", "small"]`',
        )
    if more := table.keys() - {_POOL_KEY}:
        raise StartFailed(
            f"backends.{name} is a group of backends and takes no key but `pool`: {listed(more)}",
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
            hint=f"set `type` to one of: {listed(types)}",
        )
    if kind.api_version != API_VERSION:
        raise StartFailed(
            f"The backend `{type_name}` is written for version {kind.api_version} of the contract,"
            f" this server speaks {API_VERSION}",
            hint=f"update the plugin that offers `{type_name}`",
        )
    keys = listed(kind.Config.__struct_fields__)
    config = _converted(name, values, kind.Config, hint=f"its keys are: {keys}")
    context = replace(base, state_dir=base.state_dir / name)
    return kind(config, context)


def _room(name: str, table: Mapping[str, Any]) -> CapacityConfig:
    values = {key: value for key, value in table.items() if key in _ROOM_KEYS}
    hint = "max_running and max_memory_bytes are whole numbers, 0 for no limit"
    return _converted(name, values, CapacityConfig, hint=hint)


def _converted[T](name: str, values: Mapping[str, Any], kind: type[T], *, hint: str) -> T:
    try:
        # Values from environment variables are strings.
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as exc:
        message = f"The table [backends.{name}] is invalid: {exc}"
        raise StartFailed(message, hint=hint) from exc


def _ordered_specs(
    host: PluginHost,
    config: Config,
    backends: Mapping[str, Backend],
    pools: Mapping[str, tuple[str, ...]],
) -> list[Spec]:
    default_backend = config.sandboxes.default_backend
    named = (replace(spec, backend=spec.backend or default_backend) for spec in host.specs())
    offered = [spec for spec in named if spec.backend in backends]
    specs: dict[str, Spec] = {}
    for table, entry in config.specs.items():
        own = {"id": entry.id or table, "backend": entry.backend or default_backend}
        spec = _completed(msgspec.convert({**msgspec.to_builtins(entry), **own}, Spec), offered)
        if spec.backend not in pools:
            _check_configured(table, spec, backends)
        specs[spec.id] = spec
    for spec in offered:
        specs.setdefault(spec.id, spec)
    default = config.sandboxes.default_spec
    if default and default not in specs:
        raise StartFailed(
            f"sandboxes.default_spec is `{default}`, and there is no such spec",
            hint=f"choose one of: {listed(specs)}",
        )

    def rank(spec: Spec) -> tuple[bool, bool]:
        return spec.id != default, spec.backend != default_backend

    return sorted(specs.values(), key=rank)


def _completed(spec: Spec, offered: Iterable[Spec]) -> Spec:
    # A spec that only adds variables need not repeat the command and ports of the plugin's spec.
    if spec.command is not None or spec.image or spec.ports:
        return spec
    for base in offered:
        if base.backend == spec.backend:
            env = {**base.env, **spec.env}
            return replace(spec, command=base.command, ports=base.ports, env=env)
    return spec


def _check_configured(table: str, spec: Spec, backends: Mapping[str, Backend]) -> None:
    if spec.backend not in backends:
        raise StartFailed(
            f"specs.{table} is for the backend `{spec.backend}`, and there is no such backend",
            hint=f"choose one of: {listed(backends)}, or a group of them",
        )
    try:
        backends[spec.backend].check_spec(spec)
    except OrderRejected as exc:
        raise StartFailed(f"specs.{table} is invalid: {exc.message}") from exc
