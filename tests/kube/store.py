"""What an API server of the tests knows: objects with versions, and who watches them."""

import asyncio
import copy
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any, Final

from agentsvc.base.values import new_id, now

type Json = dict[str, Any]
type Key = tuple[str, str, str]

KINDS: Final = {
    "pods": "Pod",
    "services": "Service",
    "secrets": "Secret",
    "configmaps": "ConfigMap",
    "events": "Event",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "networkpolicies": "NetworkPolicy",
    "volumesnapshots": "VolumeSnapshot",
    "sandboxes": "Sandbox",
    "sandboxclaims": "SandboxClaim",
    "sandboxtemplates": "SandboxTemplate",
    "sandboxwarmpools": "SandboxWarmPool",
}


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class Store:
    """Objects by kind, namespace and name; each change has the next version."""

    def __init__(self) -> None:
        self.objects: dict[Key, Json] = {}
        self.version = 100
        self.forgotten = 0
        """What happened up to this version nobody can watch any more."""
        self.changed = asyncio.Event()
        self._log: list[tuple[int, str, str, Json]] = []

    def get(self, kind: str, namespace: str, name: str) -> Json:
        found = self.objects.get((kind, namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{kind} "{name}" not found')
        return found

    def select(self, kind: str, namespace: str, selector: str) -> list[Json]:
        return [
            one
            for (is_kind, there, _), one in sorted(self.objects.items())
            if (is_kind, there) == (kind, namespace) and _has(one, selector)
        ]

    def put(self, kind: str, obj: Json, *, is_new: bool = False) -> Json:
        """Store an object; what it already is, is no change."""
        metadata = obj["metadata"]
        key = (kind, metadata["namespace"], metadata["name"])
        before = self.objects.get(key)
        if before is not None and _same(before, obj):
            return before
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        if before is None or is_new:
            metadata.setdefault("uid", new_id())
            metadata["creationTimestamp"] = stamp()
        self.objects[key] = obj
        self._note("MODIFIED" if before is not None else "ADDED", kind, obj)
        return obj

    def remove(self, kind: str, namespace: str, name: str) -> None:
        found = self.objects.pop((kind, namespace, name), None)
        if found is None:
            return
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        self._note("DELETED", kind, found)
        for (other, there, called), one in list(self.objects.items()):
            owners = one["metadata"].get("ownerReferences") or ()
            if any(owner["uid"] == found["metadata"]["uid"] for owner in owners):
                self.remove(other, there, called)

    def since(self, version: int, kind: str) -> list[tuple[int, str, Json]]:
        """Return what happened to a kind after a version; raises Refused where that is forgotten."""
        if version < self.forgotten:
            raise Refused(410, "Expired", f"too old resource version: {version}")
        return [
            (at, what, one) for at, what, which, one in self._log if at > version and which == kind
        ]

    def forget(self) -> None:
        """Forget all that happened until now, as etcd does after some minutes."""
        self._log.clear()
        self.version += 1
        self.forgotten = self.version
        self.tell()

    def tell(self) -> None:
        """Wake everybody who watches."""
        self.changed.set()
        self.changed = asyncio.Event()

    def _note(self, what: str, kind: str, obj: Json) -> None:
        self._log.append((self.version, what, kind, copy.deepcopy(obj)))
        self.tell()


def merged(base: Json, patch: Mapping[str, Any]) -> Json:
    """Return an object with a merge patch in it."""
    found = copy.deepcopy(base)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif isinstance(value, Mapping):
            inner = found.get(name)
            found[name] = merged(inner if isinstance(inner, dict) else {}, value)
        else:
            found[name] = value
    return found


def stamp() -> str:
    """Return the time as an API server writes it."""
    return now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _same(one: Json, other: Json) -> bool:
    def plain(obj: Json) -> Json:
        kept = ("resourceVersion", "uid", "creationTimestamp")
        metadata = {key: value for key, value in obj["metadata"].items() if key not in kept}
        return {**obj, "metadata": metadata}

    return plain(one) == plain(other)


def _has(obj: Json, selector: str) -> bool:
    labels = obj["metadata"].get("labels") or {}
    wanted: Iterable[list[str]] = (part.split("=", 1) for part in selector.split(",") if part)
    return all(labels.get(name) == value for name, value in wanted)
