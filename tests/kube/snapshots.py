"""The API server of the tests with volume snapshots, and what takes them and fills claims from them.

Snapshots are held to the published schemas. They are copies of the directories that claims are, made
while whatever uses these goes on. What protects a claim that is being copied, and a snapshot that is
being used, does so as the sources of external-snapshotter v8.6.0 say.
"""

import asyncio
import json
import logging
import shutil
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]  # it has no types of its own
from aiohttp import web

from tests.kube.api import KubeApi
from tests.kube.schemas import strict
from tests.kube.store import Refused, stamp

log = logging.getLogger(__name__)

type Json = dict[str, Any]

GROUP: Final = "snapshot.storage.k8s.io"
DRIVER: Final = "copies.tests.agentsvc"
CRDS: Final = Path(__file__).parents[1] / "data" / "snapshots" / "crds.json"
_SNAPSHOTS: Final = "volumesnapshots"
_CLAIMS: Final = "persistentvolumeclaims"


class SnapshotApi(KubeApi):
    """An API server with snapshots, which are taken while `takes` is true."""

    groups = (f"/apis/{GROUP}/v1",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        crds = json.loads(CRDS.read_text())
        self._schemas = {
            kind: strict(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
            for kind, crd in crds.items()
        }
        self._snapshots = directory.with_name(f"{directory.name}-snapshots")
        self.takes = True
        self.fills = True
        """Whether claims are made of snapshots."""
        self.storage_classes = [storage_class("disks", is_default=True)]
        self.snapshot_classes = [snapshot_class("copies")]

    def snapshots(self) -> list[Json]:
        """Return all snapshots there are."""
        return self.store.select(_SNAPSHOTS, "default", "")

    async def _start(self) -> None:
        await super()._start()
        self._ends.append(self._loop.create_task(self._control()))

    def _add_routes(self, app: web.Application) -> None:
        app.router.add_get("/apis/storage.k8s.io/v1/storageclasses", self._storage_classes)
        app.router.add_get(f"/apis/{GROUP}/v1/volumesnapshotclasses", self._snapshot_classes)

    async def _storage_classes(self, _: web.Request) -> web.Response:
        return self._classes("storageclasses", self.storage_classes)

    async def _snapshot_classes(self, _: web.Request) -> web.Response:
        for one in self.snapshot_classes:
            self._check("volumesnapshotclasses", one)
        return self._classes("volumesnapshotclasses", self.snapshot_classes)

    def _classes(self, kind: str, found: list[Json]) -> web.Response:
        if refusal := self.refusals.get(("GET", kind)):
            raise refusal
        return web.json_response({"metadata": {}, "items": found})

    def _check(self, kind: str, obj: Json) -> None:
        errors = jsonschema.Draft7Validator(self._schemas[kind]).iter_errors(
            {**obj, "metadata": {}}
        )
        for error in errors:
            raise Refused(422, "Invalid", f"{kind} is invalid: {error.message}")

    def _stored(self, kind: str, obj: Json, known: Json) -> Json:
        if kind == _SNAPSHOTS:
            self._check(kind, obj)
        if kind == _CLAIMS:
            obj["spec"].setdefault("storageClassName", "disks")
        return super()._stored(kind, obj, known)

    async def _delete(self, request: web.Request) -> web.Response:
        answer = await super()._delete(request)
        self.store.tell()
        return answer

    async def _end(self, kind: str, obj: Json, grace: float | None) -> None:
        metadata = obj["metadata"]
        if kind == _SNAPSHOTS:
            while self._is_filling(metadata["name"]):
                await self.store.changed.wait()
            shutil.rmtree(self._place(obj), ignore_errors=True)
            self.store.remove(kind, metadata["namespace"], metadata["name"])
            return
        while kind == _CLAIMS and self._is_being_taken(metadata["name"]):
            await self.store.changed.wait()
        await super()._end(kind, obj, grace)

    def _is_filling(self, snapshot: str) -> bool:
        return any(
            _source_of(claim) == snapshot and not _is_bound(claim)
            for claim in self.store.select(_CLAIMS, "default", "")
        )

    def _is_being_taken(self, claim: str) -> bool:
        return any(_claim_of(one) == claim and not _is_ready(one) for one in self.snapshots())

    # What the controllers do

    async def _control(self) -> None:
        while True:
            changed = self.store.changed
            try:
                for snapshot in self.snapshots() if self.takes else ():
                    if not _is_ready(snapshot) and "deletionTimestamp" not in snapshot["metadata"]:
                        await self._take(snapshot)
                for claim in self.store.select(_CLAIMS, "default", "") if self.fills else ():
                    if _source_of(claim) and not _is_bound(claim):
                        await self._fill(claim)
            except Exception:
                log.exception("the controller of the tests has failed")
                raise
            await changed.wait()

    async def _take(self, snapshot: Json) -> None:
        name = _claim_of(snapshot)
        claim = self.store.objects.get((_CLAIMS, "default", name))
        if claim is None:
            said = f"the VolumeSnapshot's source claim `{name}` does not exist"
            self._say(_SNAPSHOTS, snapshot, {"error": {"message": said}, "readyToUse": False})
            return
        await _copy(self._directory / name, self._place(snapshot))
        uid, size = snapshot["metadata"]["uid"], claim["spec"]["resources"]["requests"]["storage"]
        status = {
            "boundVolumeSnapshotContentName": f"snapcontent-{uid}",
            "creationTime": stamp(),
            "readyToUse": True,
            "restoreSize": size,
        }
        self._say(_SNAPSHOTS, snapshot, status)

    async def _fill(self, claim: Json) -> None:
        snapshot = self.store.objects.get((_SNAPSHOTS, "default", _source_of(claim)))
        if (
            snapshot is None
            or not _is_ready(snapshot)
            or "deletionTimestamp" in snapshot["metadata"]
        ):
            # As some versions of external-provisioner, which never fill it.
            return
        await _copy(self._place(snapshot), self._directory / claim["metadata"]["name"])
        requests = claim["spec"]["resources"]["requests"]
        self._say(_CLAIMS, claim, {"phase": "Bound", "capacity": requests})

    def _place(self, snapshot: Json) -> Path:
        return self._snapshots / str(snapshot["metadata"]["uid"])

    def _say(self, kind: str, obj: Json, status: Json) -> None:
        known = self.store.objects.get((kind, "default", obj["metadata"]["name"]))
        if known is not None and known["metadata"]["uid"] == obj["metadata"]["uid"]:
            changed = {**known, "metadata": dict(known["metadata"]), "status": status}
            if kind == _SNAPSHOTS:
                self._check(kind, changed)
            self.store.put(kind, changed)


def storage_class(name: str, *, driver: str = DRIVER, is_default: bool = False) -> Json:
    """Return a class of storage."""
    told = {"storageclass.kubernetes.io/is-default-class": "true" if is_default else "false"}
    return {"metadata": {"name": name, "annotations": told}, "provisioner": driver}


def snapshot_class(
    name: str, *, driver: str = DRIVER, policy: str = "Delete", is_default: bool = False
) -> Json:
    """Return a class of snapshots."""
    told = {"snapshot.storage.kubernetes.io/is-default-class": "true" if is_default else "false"}
    metadata = {"name": name, "annotations": told}
    return {"metadata": metadata, "driver": driver, "deletionPolicy": policy}


async def _copy(source: Path, into: Path) -> None:
    """Copy files as they are at some moment; what comes and goes meanwhile may be missing."""
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", 'mkdir -p "$1" "$2" && cp -a "$1/." "$2"', "sh", str(source), str(into)
    )
    await process.wait()


def _claim_of(snapshot: Json) -> str:
    return str(snapshot["spec"]["source"]["persistentVolumeClaimName"])


def _source_of(claim: Json) -> str:
    """Return the name of the snapshot that a claim is made of."""
    return str((claim["spec"].get("dataSource") or {}).get("name") or "")


def _is_ready(snapshot: Json) -> bool:
    return (snapshot.get("status") or {}).get("readyToUse") is True


def _is_bound(claim: Json) -> bool:
    return (claim.get("status") or {}).get("phase") == "Bound"
