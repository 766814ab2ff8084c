"""The sweep: scans all backends, wakes the reconciler for known sandboxes, removes orphans."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from agentsvc.base import AgentsvcError, BackendBroken, is_sandbox_id, now, steady_now
from agentsvc.config import SandboxesConfig
from agentsvc.plugin import Found, PartlyScanned
from agentsvc.sandboxes.admission.table import Removal
from agentsvc.sandboxes.backend_calls import BackendCalls
from agentsvc.sandboxes.reconciler import Reconciler
from agentsvc.sandboxes.state import SandboxSummary
from agentsvc.sandboxes.stores import SandboxStores

log = logging.getLogger(__name__)

_BATCH: Final = 2
"""Batch size of the sweep; small, so that it delays no other work."""
_BATCH_SECONDS: Final = 0.05
"""Wait for a batch; a check of a local sandbox takes no longer."""
_SLOW_BATCH: Final = 64
"""Batch size after a batch has timed out."""
_SLOW_BATCH_SECONDS: Final = 1.0
"""Wait for each of these larger batches."""

type _Key = tuple[str, str]


class _Scan(msgspec.Struct, frozen=True, kw_only=True):
    """The sandboxes that a scan of a backend found."""

    found: Mapping[str, Found]
    is_whole: bool = True
    """Whether the scan is complete: a sandbox not found does not exist."""


class OrphanCollector(msgspec.Struct, eq=False):
    """Compares the sandboxes of backends with the rows of the database."""

    stores: SandboxStores
    calls: BackendCalls
    reconciler: Reconciler
    config: SandboxesConfig
    _unreachable: set[str] = set()
    _orphans: dict[_Key, datetime] = {}
    _failed: dict[_Key, Removal] = {}

    @property
    def _grace(self) -> timedelta:
        return timedelta(seconds=self.config.orphan_grace_seconds)

    async def sweep(self) -> None:
        """Check every sandbox; skip backends that cannot be scanned.

        After a partial scan, only what was found is used, and nothing counts as missing.
        """
        names = {*await self.stores.sandboxes.backends(), *self.calls.registry.names()}
        for name in sorted(names):
            warm_pool = await self.stores.warm_pool.ids_of_backend(name)
            known = await self.stores.sandboxes.summaries(name)
            scan = await self._scan(name)
            if scan is None:
                continue
            await self._check(known, scan.found)
            await self._remove_orphans(name, scan, {sandbox.id for sandbox in known} | warm_pool)

    def failed_removals(self) -> list[Removal]:
        """Return the orphans whose removal has failed so far."""
        return list(self._failed.values())

    def unreachable(self) -> frozenset[str]:
        """Return the backends whose last scan failed."""
        return frozenset(self._unreachable)

    async def _scan(self, name: str) -> _Scan | None:
        try:
            async with self.calls.to(name) as backend:
                found = await backend.scan()
        except PartlyScanned as exc:
            self._note_unreachable(name, exc)
            return _Scan(found=_by_id(exc.found), is_whole=False)
        except AgentsvcError as exc:
            self._note_unreachable(name, exc)
            return None
        if name in self._unreachable:
            self._unreachable.discard(name)
            log.info("backend can be listed again", extra={"backend": name})
        return _Scan(found=_by_id(found))

    def _note_unreachable(self, name: str, exc: AgentsvcError) -> None:
        if name in self._unreachable:
            return
        self._unreachable.add(name)
        log.warning(
            "backend cannot be listed, known sandboxes are kept",
            extra={"backend": name, "reason": exc.log_text},
            exc_info=exc if isinstance(exc, BackendBroken) else None,
        )

    async def _check(self, known: Sequence[SandboxSummary], found: Mapping[str, Found]) -> None:
        at_once, wait_seconds = _BATCH, _BATCH_SECONDS
        woken = 0
        for sandbox in known:
            if woken == at_once:
                if not await self.reconciler.catch_up(wait_seconds):
                    at_once, wait_seconds = _SLOW_BATCH, _SLOW_BATCH_SECONDS
                woken = 0
            if sandbox.handle is None and sandbox.id in found:
                await self._add_handle(found[sandbox.id])
            self.reconciler.wake(sandbox.id)
            woken += 1

    async def _add_handle(self, found: Found) -> None:
        await self.stores.db.write(lambda tx: self.stores.sandboxes.add_handle(tx, found.handle))

    async def _remove_orphans(self, name: str, scan: _Scan, known: set[str]) -> None:
        found = scan.found
        unknown = {(name, sandbox_id) for sandbox_id in found.keys() - known}
        for key in [key for key in self._orphans if key[0] == name and key not in unknown]:
            if scan.is_whole or key[1] in known:
                del self._orphans[key]
                self._failed.pop(key, None)
        for key in sorted(unknown):
            since = self._orphans.setdefault(key, steady_now())
            # It may have been ordered after the rows were read.
            if steady_now() - since >= self._grace and not await self._is_known(key[1]):
                await self._remove_orphan(key, found[key[1]])

    async def _is_known(self, sandbox_id: str) -> bool:
        is_spare = await self.stores.warm_pool.find(sandbox_id) is not None
        return is_spare or await self.stores.sandboxes.find(sandbox_id) is not None

    async def _remove_orphan(self, key: _Key, orphan: Found) -> None:
        name, sandbox_id = key
        extra = {"backend": name, "sandbox_id": sandbox_id}
        log.warning("removing orphaned sandbox", extra=extra)
        try:
            async with self.calls.to(name) as backend:
                await backend.delete(orphan.handle)
        except AgentsvcError as exc:
            # Retry after another grace period, not at each sweep.
            self._orphans[key] = steady_now()
            earlier = self._failed.get(key)
            self._failed[key] = Removal(
                sandbox_id=sandbox_id,
                user_id=None,
                backend=name,
                spec_id=None,
                reason=exc.message,
                tries=1 + (earlier.tries if earlier else 0),
                due_at=now() + self._grace,
            )
            log.warning("orphaned sandbox not removed", extra={**extra, "reason": str(exc)})


def _by_id(found: Iterable[Found]) -> dict[str, Found]:
    # A foreign sandbox may have any name; ids become file names, so ignore invalid ones.
    return {one.handle.sandbox_id: one for one in found if is_sandbox_id(one.handle.sandbox_id)}
