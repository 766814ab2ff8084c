"""The engines of one backend: places new sandboxes, and finds the engine of existing ones."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from agentsvc.base import BackendUnavailable, CapacityExceeded, OrderRejected, replace_private

from . import names
from .engine import Engine, EngineInfo

_AWAY_SECONDS: Final = 10.0
"""Timeout of each engine when several are queried together."""


class EngineLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The present load of one engine."""

    name: str
    sandboxes: int
    cpus: int
    memory_bytes: int
    max_sandboxes: int = 0
    has_it: bool = False
    """Whether the engine already has the sandbox that is being placed."""


def choose(loads: Iterable[EngineLoad]) -> str:
    """Return the engine for a sandbox: its present one, or the least loaded one.

    Raises CapacityExceeded if all engines are full.
    """
    known = list(loads)
    for load in known:
        if load.has_it:
            return load.name
    free = [one for one in known if not one.max_sandboxes or one.sandboxes < one.max_sandboxes]
    if not free:
        raise CapacityExceeded("Every container engine is at its `max_sandboxes`")
    return min(free, key=_load_order).name


def fits(asked: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Return whether an engine has the labels that a spec requires."""
    return all(labels.get(name) == value for name, value in asked.items())


class EnginePool:
    """All engines of a backend by name, with their last known features."""

    def __init__(self, engines: Iterable[Engine], instance_id: str, state_dir: Path) -> None:
        self.engines = {engine.name: engine for engine in engines}
        self.facts: dict[str, EngineInfo] = {}
        self._instance_id = instance_id
        self._placements = state_dir / "placements"

    def get(self, name: str) -> Engine:
        """Return an engine; raises BackendUnavailable if it is not configured any more."""
        engine = self.engines.get(name)
        if engine is None:
            raise BackendUnavailable(f"The container engine `{name}` is not configured any more")
        return engine

    async def probe(self) -> dict[str, str]:
        """Query the features of every engine; return the errors of those that do not respond."""
        found, away = await self.ask_all(lambda one: one.facts(fresh=True))
        self.facts |= found
        return {name: f"{one.message}: {one.detail}" for name, one in away.items()}

    def lacking_runtime(self, runtime: str, away: Mapping[str, str]) -> list[str]:
        """Return an error for each reachable engine without this OCI runtime; none for ""."""
        return [
            f"the engine `{name}` has no runtime `{runtime}`"
            for name, facts in self.facts.items()
            if runtime and name not in away and runtime not in facts.runtimes
        ]

    async def ask_all[T](
        self, ask: Callable[[Engine], Awaitable[T]], names: Iterable[str] | None = None
    ) -> tuple[dict[str, T], dict[str, BackendUnavailable]]:
        """Query all engines, or those named, concurrently; unreachable ones time out early.

        Returns the results by engine, and the errors by engine.
        """
        asked = list(self.engines if names is None else names)
        has_others = len(asked) > 1

        async def one(name: str) -> T | BackendUnavailable:
            try:
                async with asyncio.timeout(_AWAY_SECONDS if has_others else None):
                    return await ask(self.engines[name])
            except BackendUnavailable as exc:
                return exc
            except TimeoutError:
                return self.engines[name].away("it did not respond in time")

        found: dict[str, T] = {}
        away: dict[str, BackendUnavailable] = {}
        for name, result in zip(asked, await asyncio.gather(*map(one, asked)), strict=True):
            if isinstance(result, BackendUnavailable):
                away[name] = result
            else:
                found[name] = result
        return found, away

    async def place(
        self,
        sandbox_id: str,
        labels: Mapping[str, str],
        has_files: Callable[[Engine], Awaitable[bool]] | None = None,
    ) -> Engine:
        """Return the engine for a sandbox, always the same one for the same sandbox.

        `has_files` checks whether an engine has the files that the sandbox starts from. Raises
        OrderRejected if none has them, BackendUnavailable if an engine that may have them is
        unreachable.
        """
        fitting = [one for one in self.engines.values() if fits(labels, one.host.labels)]
        if not fitting:
            raise OrderRejected("No container engine has the labels that `host_labels` asks for")
        if len(self.engines) == 1 and not fitting[0].host.max_sandboxes:
            return fitting[0]
        note = self._placements / sandbox_id
        if (noted := await asyncio.to_thread(_read, note)) in self.engines:
            return self.get(noted)
        suitable = [one.name for one in fitting]
        if has_files is not None:
            suitable = await self._with_files(has_files, suitable)
        loads, away = await self.ask_all(lambda one: self._load(one, sandbox_id), suitable)
        if not loads:
            raise next(iter(away.values()))
        chosen = choose(loads.values())
        # On disk before anything is created: the engine may be unreachable when the order is
        # repeated.
        await asyncio.to_thread(_write, note, chosen)
        return self.get(chosen)

    async def _with_files(
        self, has_files: Callable[[Engine], Awaitable[bool]], among: Iterable[str]
    ) -> list[str]:
        results, away = await self.ask_all(has_files, among)
        if found := [name for name, has in results.items() if has]:
            return found
        if away:
            raise next(iter(away.values()))
        raise OrderRejected("No container engine has the files that the sandbox starts from")

    async def forget(self, sandbox_id: str) -> None:
        """Remove the record of a sandbox's engine."""
        await asyncio.to_thread((self._placements / sandbox_id).unlink, missing_ok=True)

    async def _load(self, engine: Engine, sandbox_id: str) -> EngineLoad:
        facts = await engine.facts()
        self.facts[engine.name] = facts
        found = await engine.listed("containers", names.of_installation(self._instance_id))
        own = [one for one in found if (one.get("Labels") or {}).get(names.ROLE) == "sandbox"]
        return EngineLoad(
            name=engine.name,
            sandboxes=sum(one.get("State") in ("running", "created") for one in own),
            cpus=facts.cpus,
            memory_bytes=facts.memory_bytes,
            max_sandboxes=engine.host.max_sandboxes,
            has_it=any(one["Labels"].get(names.SANDBOX) == sandbox_id for one in own),
        )


def _load_order(load: EngineLoad) -> tuple[float, int]:
    return (load.sandboxes + 1) / max(load.cpus, 1), -load.memory_bytes


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace_private(path, text)
