"""Volume snapshots, by which files of sandboxes are saved and copied if the cluster supports them.

A layer is a snapshot that belongs to no sandbox. A snapshot for a copy belongs to the new sandbox,
and is removed once that has its files, or with it. No snapshot is removed while a claim that stays
is still to be filled from it, because some clusters would never fill the claim then.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from agentsvc.base import OrderRejected, now, parse_time
from agentsvc.plugin import StillFetching

from . import names, plan
from .api import Api
from .failures import one_line
from .settings import KubernetesConfig

type Json = dict[str, Any]

_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_VERSION: Final = "v1"
_STORAGE_CLASSES: Final = "apis/storage.k8s.io/v1/storageclasses"
_SNAPSHOT_CLASSES: Final = f"apis/{names.SNAPSHOTS}/{_VERSION}/volumesnapshotclasses"
_DEFAULT_STORAGE: Final = "storageclass.kubernetes.io/is-default-class"
_DEFAULT_SNAPSHOT: Final = "snapshot.storage.kubernetes.io/is-default-class"
_NONE_TAKEN: Final = (
    f"the cluster has no volume snapshots, which are `{names.SNAPSHOTS}/{_VERSION}`"
)
_NO_RIGHT: Final = (
    "this server may not list `volumesnapshots` in the namespace: apply the Role of"
    " plugins/kubernetes"
)


class Snapshots:
    """Detects whether a cluster takes volume snapshots, and creates and removes them."""

    def __init__(self, api: Api, config: KubernetesConfig, instance_id: str) -> None:
        self._api = api
        self._config = config
        self._instance_id = instance_id
        self._storage: list[Json] | None = None
        self._classes: list[Json] | None = None
        self.why_not = "the backend is not open"
        """Why claims of the configured storage class cannot be snapshotted; empty if they can."""
        self.has_any = False
        """Whether snapshots may exist. Once True it stays so: if the API is missing later, its
        objects may still exist."""

    async def look_around(self) -> None:
        """Detect whether snapshots can be taken; raises BackendUnavailable without a response."""
        try:
            self.why_not = await self._find_out()
        except OrderRejected as exc:
            self.why_not = exc.message

    async def keep_layer(self, claim: Json, layer_id: str, *, max_bytes: int) -> int:
        """Take a snapshot of an unused claim as a layer; return its size in bytes.

        Raises StillFetching until it is ready, OrderRejected if it cannot be taken or is too large.
        """
        name = names.layer(layer_id)
        labels = names.labels_of_layer(self._instance_id, layer_id)
        found = await self._take(claim, name, labels)
        size = size_of(found) or _bytes((claim.get("status") or {}).get("capacity") or {})
        if size > max_bytes:
            await self._delete(found)
            raise OrderRejected(
                f"A snapshot of the files takes {size} bytes, and a layer at most {max_bytes}"
            )
        return size

    async def find_layer(self, namespace: str, layer_id: str) -> Json:
        """Return the snapshot of a layer; raises OrderRejected if there is none that is ready."""
        name, labels = names.layer(layer_id), names.labels_of_layer(self._instance_id, layer_id)
        found = await self._find(namespace, name) if self.has_any else None
        if (
            found is None
            or not _has(found, labels)
            or names.is_ending(found)
            or not is_ready(found)
        ):
            raise OrderRejected("The prepared files with which the sandbox is to begin are gone")
        return found

    async def copy(self, claim: Json, sandbox_id: str) -> Json:
        """Take a snapshot of a claim for a new sandbox to start from, and return it.

        Raises StillFetching until it is ready, OrderRejected if it cannot be taken.
        """
        labels = names.labels(self._instance_id, sandbox_id, "copy")
        return await self._take(claim, names.main(sandbox_id), labels)

    async def is_copying(self, namespace: str, sandbox_id: str) -> bool:
        """Return whether there is a snapshot for a new sandbox to start from, ready or not."""
        return await self._find_copy(namespace, sandbox_id) is not None

    async def forget_copy(self, namespace: str, sandbox_id: str) -> None:
        """Remove the snapshot that a sandbox was to start from, if there is one."""
        if self.has_any and (found := await self._find_copy(namespace, sandbox_id)):
            await self._delete(found)

    async def layers(self) -> list[str]:
        """List the ids of the layers, including those whose snapshots are incomplete."""
        found = await self.listed()
        ids = [
            names.labels_of(one).get(names.LAYER, "") for one in found if not names.is_ending(one)
        ]
        return [one for one in ids if one]

    async def remove_layer(self, layer_id: str) -> None:
        """Remove a layer unless a claim is being filled from it; idempotent."""
        namespace, name = self._api.namespace, names.layer(layer_id)
        labels = names.labels_of_layer(self._instance_id, layer_id)
        found = await self._find(namespace, name)
        if found is None or not _has(found, labels):
            return
        selector = names.of_installation(self._instance_id)
        path = names.path("persistentvolumeclaims", namespace)
        claims, _ = await self._api.list_all(path, selector=selector)
        if not any(source_of(claim) == name and not is_filled(claim) for claim in claims):
            await self._delete(found)

    async def listed(self) -> list[Json]:
        """List the metadata of all snapshots of this installation."""
        if not self.has_any:
            return []
        path = names.path("volumesnapshots", self._api.namespace)
        selector = names.of_installation(self._instance_id)
        found, _ = await self._api.list_all(path, selector=selector, names_only=True)
        return found

    # The parts

    async def _find_out(self) -> str:
        served = await self._api.ask("GET", "apis", expect=(_FORBIDDEN,))
        if not is_served(served or {}):
            return _NONE_TAKEN
        if not await self._api.may("list", "volumesnapshots", names.SNAPSHOTS):
            return _NO_RIGHT
        self.has_any = True
        self._storage = await self._all(_STORAGE_CLASSES)
        self._classes = await self._all(_SNAPSHOT_CLASSES)
        self._class_for(self._config.storage_class)
        return ""

    async def _all(self, path: str) -> list[Json] | None:
        """Return the cluster-wide classes of a kind; None if this server may not list them."""
        found = await self._api.ask("GET", path, expect=(_FORBIDDEN,))
        return None if found is None else found.get("items") or []

    def _class_for(self, storage_class: str) -> str:
        """Return the snapshot class for a storage class; if empty, the cluster chooses."""
        if self._storage is None or self._classes is None:
            return self._config.snapshot_class
        driver = driver_of(storage_class, self._storage)
        return choose(driver, self._config.snapshot_class, self._classes)

    async def _take(self, claim: Json, name: str, labels: Mapping[str, str]) -> Json:
        namespace = claim["metadata"]["namespace"]
        found = await self._find(namespace, name)
        if found is None:
            chosen = self._class_for((claim.get("spec") or {}).get("storageClassName") or "")
            path = names.path("volumesnapshots", namespace)
            body = manifest(claim, name, labels, chosen)
            await self._api.ask("POST", path, body=body, expect=(_CONFLICT,))
            raise StillFetching("The cluster takes a snapshot of the files")
        if not _has(found, labels):
            raise OrderRejected(f"The namespace has volumesnapshots `{name}` not of this server")
        if names.is_ending(found):
            raise StillFetching("An earlier snapshot of the files is being removed")
        if is_ready(found):
            return found
        if why := why_not_taken(found, self._config.end_seconds):
            await self._delete(found)
            raise OrderRejected(f"The cluster takes no snapshot of the files: {why}")
        raise StillFetching("The cluster takes a snapshot of the files")

    async def _find(self, namespace: str, name: str) -> Json | None:
        return await self._api.get(names.path("volumesnapshots", namespace, name))

    async def _find_copy(self, namespace: str, sandbox_id: str) -> Json | None:
        found = await self._find(namespace, names.main(sandbox_id))
        return found if names.is_own(found, self._instance_id, sandbox_id) else None

    async def _delete(self, found: Json) -> None:
        about = found["metadata"]
        path = names.path("volumesnapshots", about["namespace"], about["name"])
        body = {"preconditions": {"uid": names.uid_of(found)}}
        await self._api.ask("DELETE", path, body=body, expect=(_NOT_FOUND, _CONFLICT))


def is_served(groups: Json) -> bool:
    """Return whether an API server's list of API groups includes volume snapshots."""
    for group in groups.get("groups") or ():
        if group.get("name") == names.SNAPSHOTS:
            return any(one.get("version") == _VERSION for one in group.get("versions") or ())
    return False


def manifest(claim: Json, name: str, labels: Mapping[str, str], chosen: str) -> Json:
    """Return the manifest of a snapshot of a claim."""
    return {
        "apiVersion": f"{names.SNAPSHOTS}/{_VERSION}",
        "kind": "VolumeSnapshot",
        "metadata": {
            "name": name,
            "namespace": claim["metadata"]["namespace"],
            "labels": dict(labels),
        },
        "spec": {
            "source": {"persistentVolumeClaimName": claim["metadata"]["name"]},
            **({"volumeSnapshotClassName": chosen} if chosen else {}),
        },
    }


def is_ready(found: Json) -> bool:
    """Return whether claims can be filled from a snapshot."""
    return (found.get("status") or {}).get("readyToUse") is True


def source_of(claim: Json) -> str:
    """Return the name of the snapshot that a claim is filled from, or an empty text."""
    return str(((claim.get("spec") or {}).get("dataSource") or {}).get("name") or "")


def is_filled(claim: Json) -> bool:
    """Return whether a claim is bound to a volume, and therefore has its initial files."""
    return (claim.get("status") or {}).get("phase") == "Bound"


def size_of(found: Json) -> int:
    """Return the minimum size in bytes of a volume for a snapshot; 0 if it is not reported."""
    return _bytes({"storage": (found.get("status") or {}).get("restoreSize")})


def why_not_taken(found: Json, after_seconds: float) -> str:
    """Return why a snapshot older than `after_seconds` cannot be taken, or an empty text."""
    began = parse_time(str((found.get("metadata") or {}).get("creationTimestamp")))
    if began is None or (now() - began).total_seconds() < after_seconds:
        # What fails at first is tried again.
        return ""
    status = found.get("status") or {}
    if message := one_line(str((status.get("error") or {}).get("message") or "")):
        return message
    return (
        "" if status else "nothing in the cluster answers to it: is its snapshot controller there?"
    )


def driver_of(storage_class: str, storage: Sequence[Json]) -> str:
    """Return the driver of a storage class, or of the default one; raises OrderRejected."""
    if storage_class:
        found = [one for one in storage if one["metadata"]["name"] == storage_class]
    else:
        found = sorted(_defaults(storage, _DEFAULT_STORAGE), key=_made_at)
    if not found:
        what = f"storage class `{storage_class}`" if storage_class else "default storage class"
        raise OrderRejected(f"the cluster has no {what}")
    # Of several default ones the newest counts.
    return str(found[-1].get("provisioner"))


def choose(driver: str, wanted: str, classes: Sequence[Json]) -> str:
    """Return the name of the snapshot class for a driver; raises OrderRejected unless there is one.

    A class must have the deletion policy `Delete`: otherwise nobody would remove the data of
    deleted snapshots from the storage.
    """
    found = [one for one in classes if one.get("driver") == driver]
    found = [one for one in found if one.get("deletionPolicy") == "Delete"]
    if wanted:
        found = [one for one in found if one["metadata"]["name"] == wanted]
    elif len(found) > 1:
        found = _defaults(found, _DEFAULT_SNAPSHOT)
    if len(found) == 1:
        return str(found[0]["metadata"]["name"])
    which = f"is not `{wanted}`" if wanted else "would have to be there, or be the default one"
    raise OrderRejected(
        f"one VolumeSnapshotClass of the driver `{driver}` with the deletionPolicy `Delete`"
        f" {which}: see `snapshot_class`"
    )


def _defaults(classes: Iterable[Json], annotation: str) -> list[Json]:
    return [one for one in classes if names.annotations_of(one).get(annotation) == "true"]


def _made_at(one: Json) -> str:
    return str(one["metadata"].get("creationTimestamp"))


def _has(found: Json, labels: Mapping[str, str]) -> bool:
    return labels.items() <= names.labels_of(found).items()


def _bytes(told: Mapping[str, Any]) -> int:
    return int(plan.amount(str(told.get("storage") or "0")))
