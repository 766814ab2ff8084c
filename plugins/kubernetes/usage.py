"""Resource usage of pods, from the metrics API or the kubelets.

A response covers many pods and is cached for 10 seconds. A source that is unavailable is not
queried again for 1 minute; a source that rejects the request, for 10 minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from agentsvc.base import AgentsvcError, BackendUnavailable, OrderRejected, monotonic
from agentsvc.plugin import Usage

from . import names, plan
from .api import Api
from .objects import CONTAINER

type Json = dict[str, Any]
type Told = Mapping[str, Usage]

_KEPT_SECONDS: Final = 10.0
_AWAY_SECONDS: Final = 60.0
_REFUSED_SECONDS: Final = 600.0
_METRICS: Final = "the cluster's metrics"


class _Source:
    """A source of usage data, with its last response and when that expires."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.told: Told = {}
        self.until = 0.0


class Meter:
    """Queries the resource usage of the pods of one installation."""

    def __init__(self, api: Api, instance_id: str) -> None:
        self._api = api
        self._selector = names.of_installation(instance_id)
        self._sources: dict[str, _Source] = {}

    async def find(self, pod: Json) -> Usage | None:
        """Return the resource usage of a pod; None if no source reports it."""
        metadata = pod["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        told = await self._ask(f"{_METRICS} of {namespace}", lambda: self._metrics(namespace))
        node = (pod.get("spec") or {}).get("nodeName")
        if name in told or not node:
            return told.get(name)
        told = await self._ask(f"node {node}", lambda: self._kubelet(node))
        return told.get(names.uid_of(pod))

    async def _ask(self, whom: str, ask: Callable[[], Awaitable[Told]]) -> Told:
        if whom not in self._sources:
            self._forget_old_ones()
        source = self._sources.setdefault(whom, _Source())
        async with source.lock:
            if monotonic() > source.until:
                source.told, seconds = await _answer(ask)
                source.until = monotonic() + seconds
            return source.told

    def _forget_old_ones(self) -> None:
        # Nodes come and go.
        long_ago = monotonic() - _REFUSED_SECONDS
        for whom, source in list(self._sources.items()):
            if source.until < long_ago and not source.lock.locked():
                del self._sources[whom]

    async def _metrics(self, namespace: str) -> Told:
        path = f"apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods"
        found = await self._api.ask("GET", path, query={"labelSelector": self._selector})
        return of_metrics(found or {})

    async def _kubelet(self, node: str) -> Told:
        found = await self._api.ask("GET", f"api/v1/nodes/{node}/proxy/stats/summary")
        return of_summary(found or {})


async def _answer(ask: Callable[[], Awaitable[Told]]) -> tuple[Told, float]:
    """Return a source's response, empty if it failed, and for how many seconds to cache it."""
    try:
        return await ask(), _KEPT_SECONDS
    except BackendUnavailable:
        return {}, _AWAY_SECONDS
    except AgentsvcError:
        return {}, _REFUSED_SECONDS


def of_metrics(found: Json) -> Told:
    """Return the memory in use by pod name from `metrics.k8s.io`, which has no total CPU time."""
    told = {}
    for one in _maps(found.get("items")):
        name = _map(one.get("metadata")).get("name")
        for container in _maps(one.get("containers")):
            memory = _bytes(_map(container.get("usage")).get("memory"))
            if container.get("name") == CONTAINER and isinstance(name, str) and memory:
                told[name] = Usage(memory_bytes=memory)
    return told


def of_summary(found: Json) -> Told:
    """Return the usage by pod UID from a kubelet's summary."""
    told = {}
    for one in _maps(found.get("pods")):
        uid = _map(one.get("podRef")).get("uid")
        for container in _maps(one.get("containers")):
            spent = _map(container.get("cpu")).get("usageCoreNanoSeconds")
            memory = _map(container.get("memory")).get("workingSetBytes")
            if container.get("name") != CONTAINER or not isinstance(uid, str):
                continue
            told[uid] = Usage(
                cpu_seconds=spent / 1e9 if isinstance(spent, int) else None,
                memory_bytes=memory if isinstance(memory, int) and memory else None,
            )
    return told


def _bytes(quantity: Any) -> int | None:
    try:
        return int(plan.amount(quantity)) if isinstance(quantity, str) else None
    except (OrderRejected, ValueError):
        return None


def _map(found: Any) -> Json:
    return found if isinstance(found, dict) else {}


def _maps(found: Any) -> list[Json]:
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
