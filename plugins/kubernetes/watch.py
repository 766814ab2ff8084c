"""A cache of an installation's pods, filled by one list and kept current by one watch.

It uses one connection, however many sandboxes there are. The cache is used only while the watch is
open and the API server has sent something in the last 0.5 s; otherwise the pod is fetched.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from agentsvc.base import AgentsvcError, BackendUnavailable, monotonic

from . import names
from .api import Api
from .failures import Outdated

log = logging.getLogger(__name__)

type Json = dict[str, Any]

RESYNC_SECONDS: Final = 600
"""Age of the list in seconds after which the pods are listed again, once the present watch ends."""

_WATCH_SECONDS: Final = 300
_SILENCE_SECONDS: Final = 150
"""Bookmarks arrive every minute; a watch that is silent for this long is reopened."""
_FRESH_SECONDS: Final = 0.5
_AGAIN_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
_GONE: Final = 410
_KEPT: Final = 10_000


class PodWatch:
    """Caches the pods of one installation in one namespace, from `start` to `stop`."""

    def __init__(self, api: Api, instance_id: str) -> None:
        self._api = api
        self._selector = names.of_installation(instance_id)
        self._namespace = ""
        self._pods: dict[str, Json] = {}
        self._ended: dict[str, None] = {}
        self._version = ""
        self._is_live = False
        self._task: asyncio.Task[None] | None = None
        self._changed: dict[str, set[asyncio.Event]] = {}
        self._listed_at = 0.0

    async def start(self) -> None:
        """List the pods and start to watch them; raises the errors of the list."""
        self._namespace = self._api.namespace
        if self._task is None:
            await self._list()
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name="watch of pods")

    async def stop(self) -> None:
        """Stop the watch. Idempotent, and safe without `start`."""
        task, self._task = self._task, None
        self._is_live = False
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def find(self, namespace: str, name: str) -> Json | None:
        """Return a pod, or None if there is none; raises BackendUnavailable if that is unknown."""
        is_known = namespace == self._namespace and self._is_live
        if is_known and monotonic() - self._api.heard_at < _FRESH_SECONDS:
            return self._pods.get(name)
        found = await self._api.get(names.path("pods", namespace, name))
        if namespace == self._namespace:
            if found is not None:
                self.put(found)
            elif name in self._pods:
                self._drop(self._pods[name])
        return found

    def put(self, pod: Json) -> None:
        """Store a pod, unless a newer version of it is known or it has been deleted."""
        name, version = pod["metadata"]["name"], _version_of(pod)
        known = self._pods.get(name)
        is_old = known is not None and _version_of(known) > version
        if is_old or names.uid_of(pod) in self._ended:
            return
        pod["metadata"].pop("managedFields", None)
        self._pods[name] = pod
        self._tell(name)

    @asynccontextmanager
    async def changes(self, name: str) -> AsyncIterator[asyncio.Event]:
        """Yield an event that is set at every change of a pod; the caller clears it."""
        event = asyncio.Event()
        self._changed.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            self._changed[name].discard(event)
            if not self._changed[name]:
                del self._changed[name]

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                if not self._version or monotonic() - self._listed_at > RESYNC_SECONDS:
                    await self._list()
                await self._listen()
                failures = 0
            except Outdated:
                self._version = ""
            except (AgentsvcError, ValueError, LookupError, TypeError, AttributeError) as exc:
                wait = _AGAIN_SECONDS[min(failures, len(_AGAIN_SECONDS) - 1)]
                level = logging.WARNING if failures == 0 else logging.DEBUG
                log.log(level, "watch interrupted", extra={"reason": _line(exc)})
                failures += 1
                await asyncio.sleep(wait)
            finally:
                self._is_live = False

    async def _list(self) -> None:
        path = names.path("pods", self._namespace)
        found, version = await self._api.list_all(path, selector=self._selector)
        listed = {pod["metadata"]["name"] for pod in found}
        # What was made while the list was under way is not in it.
        gone = [
            pod
            for name, pod in self._pods.items()
            if name not in listed and _version_of(pod) <= _number(version)
        ]
        for pod in gone:
            self._drop(pod)
        for pod in found:
            self.put(pod)
        self._version, self._listed_at = version, monotonic()

    async def _listen(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "labelSelector": self._selector,
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        path = names.path("pods", self._namespace)
        async with self._api.stream(path, query, silence_seconds=_SILENCE_SECONDS) as answer:
            self._is_live = True
            async for line in answer.content:
                self._api.heard_at = monotonic()
                self._take(_decode(line))

    def _take(self, event: Json) -> None:
        kind, about = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            if about.get("code") == _GONE:
                raise Outdated("The API server has forgotten what happened since then")
            raise BackendUnavailable("The watch has failed", detail=str(about.get("message")))
        version = str((about.get("metadata") or {}).get("resourceVersion") or "")
        if kind == "DELETED":
            self._drop(about)
        elif kind in ("ADDED", "MODIFIED"):
            self.put(about)
        self._version = version or self._version

    def _drop(self, pod: Json) -> None:
        name, uid = pod["metadata"]["name"], names.uid_of(pod)
        known = self._pods.get(name)
        if known is not None and names.uid_of(known) == uid:
            del self._pods[name]
        # An answer that was under way meanwhile must not bring it back.
        self._ended[uid] = None
        if len(self._ended) > _KEPT:
            del self._ended[next(iter(self._ended))]
        self._tell(name)

    def _tell(self, name: str) -> None:
        for event in self._changed.get(name, ()):
            event.set()


def _line(exc: Exception) -> str:
    return f"{exc} {getattr(exc, 'detail', '')}".strip()


def _decode(line: bytes) -> Json:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise BackendUnavailable("The watch says what is no JSON") from exc
    if not isinstance(found, dict):
        raise BackendUnavailable("The watch says what is no event")
    return found


def _version_of(found: Json) -> int:
    return _number(str((found.get("metadata") or {}).get("resourceVersion") or ""))


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0
