"""Makes a directory for each volume claim of a cluster, as a cloud's provisioner makes a disk.

All nodes of a cluster of the tests see the same files, so a claim follows its pod to any of them. A
snapshot is a copy of a directory. The resources are the published ones; the finalizers that keep a claim
and a snapshot while they are being copied are not there, so this copies before it removes.
"""

import http.client
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Final

from agentsvc.base.values import now
from tests.live.kube.api import Api, Refused

CLASS: Final = "directories"
"""The storage class, which is the default one."""

_NAME: Final = "tests.agentsvc/directories"
_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES: Final = "/api/v1/persistentvolumes"
GROUP: Final = "snapshot.storage.k8s.io"
_CRDS: Final = Path(__file__).parents[2] / "data" / "snapshots" / "crds.json"
_DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_SNAPSHOTS: Final = f"/apis/{GROUP}/v1/volumesnapshots"
_SNAPSHOT_CLASSES: Final = f"/apis/{GROUP}/v1/volumesnapshotclasses"
_PAUSE_SECONDS: Final = 0.3
_GROUP: Final = 1000
"""Of all pods here."""


def serve(api: Api, directory: Path, ended: threading.Event) -> None:
    """Make and remove volumes until told to end; while the API is away, wait for it."""
    while not ended.wait(_PAUSE_SECONDS):
        try:
            if api.find(f"{_CLASSES}/{CLASS}") is None:
                api.create(_CLASSES, _storage_class())
            _define(api)
            _take(api, directory)
            _look(api, directory)
        except (OSError, http.client.HTTPException, Refused):
            continue


def _define(api: Api) -> None:
    """Have the cluster know of snapshots, and of one class of them."""
    for definition in json.loads(_CRDS.read_text()).values():
        if api.find(f"{_DEFINITIONS}/{definition['metadata']['name']}") is None:
            api.create(_DEFINITIONS, definition)
    if api.find(f"{_SNAPSHOT_CLASSES}/{CLASS}") is None:
        api.create(_SNAPSHOT_CLASSES, _snapshot_class())


def _take(api: Api, directory: Path) -> None:
    """Copy the directories of claims of which snapshots are asked for, and remove old copies."""
    snapshots = api.items(_SNAPSHOTS)
    for snapshot in snapshots:
        about, source = snapshot["metadata"], snapshot["spec"]["source"]
        if (snapshot.get("status") or {}).get("readyToUse"):
            continue
        space = f"namespaces/{about['namespace']}"
        name = source["persistentVolumeClaimName"]
        claim = api.find(f"/api/v1/{space}/persistentvolumeclaims/{name}")
        if claim is None or claim["status"].get("phase") != "Bound":
            continue
        _copy(directory / f"claim-{claim['metadata']['uid']}", _copy_of(directory, snapshot))
        status = {
            "boundVolumeSnapshotContentName": f"snapcontent-{about['uid']}",
            "creationTime": now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "readyToUse": True,
            "restoreSize": claim["status"]["capacity"]["storage"],
        }
        own = f"/apis/{GROUP}/v1/{space}/volumesnapshots/{about['name']}/status"
        api.patch(own, {"status": status})
    known = {_copy_of(directory, snapshot) for snapshot in snapshots}
    for place in set(directory.glob("snapshot-*")) - known:
        shutil.rmtree(place, ignore_errors=True)


def _fill(api: Api, directory: Path, claim: dict[str, Any], place: Path) -> bool:
    """Give a new directory the files that its claim is to begin with; say whether it has them."""
    if (source := claim["spec"].get("dataSource")) is None:
        return True
    space = f"namespaces/{claim['metadata']['namespace']}"
    snapshot = api.find(f"/apis/{GROUP}/v1/{space}/volumesnapshots/{source['name']}")
    if snapshot is None or not (snapshot.get("status") or {}).get("readyToUse"):
        return False
    _copy(_copy_of(directory, snapshot), place)
    return True


def _copy_of(directory: Path, snapshot: dict[str, Any]) -> Path:
    return directory / f"snapshot-{snapshot['metadata']['uid']}"


def _copy(source: Path, into: Path) -> None:
    into.mkdir(exist_ok=True)
    subprocess.run(["cp", "--archive", f"{source}/.", str(into)], check=False)


def _look(api: Api, directory: Path) -> None:
    volumes = {one["metadata"]["name"]: one for one in api.items(_VOLUMES)}
    for claim in api.items("/api/v1/persistentvolumeclaims"):
        name = f"claim-{claim['metadata']['uid']}"
        if _is_wanted(claim) and name not in volumes:
            place = directory / name
            place.mkdir(exist_ok=True)
            if not _fill(api, directory, claim, place):
                continue
            # As a kubelet gives a disk to the group of a pod, which it does not with directories.
            os.chown(place, 0, _GROUP)
            place.chmod(0o2775)
            api.create(_VOLUMES, _volume(name, place, claim))
    for name, volume in volumes.items():
        if volume["status"].get("phase") == "Released" and name.startswith("claim-"):
            shutil.rmtree(directory / name, ignore_errors=True)
            api.delete(f"{_VOLUMES}/{name}")


def _is_wanted(claim: dict[str, Any]) -> bool:
    spec = claim["spec"]
    return (
        spec.get("storageClassName") == CLASS
        and not spec.get("volumeName")
        and "deletionTimestamp" not in claim["metadata"]
    )


def _storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": _NAME,
    }


def _snapshot_class() -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "VolumeSnapshotClass",
        "metadata": {"name": CLASS},
        "driver": _NAME,
        "deletionPolicy": "Delete",
    }


def _volume(name: str, place: Path, claim: dict[str, Any]) -> dict[str, Any]:
    about = claim["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "accessModes": claim["spec"]["accessModes"],
            "capacity": claim["spec"]["resources"]["requests"],
            "claimRef": {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "name": about["name"],
                "namespace": about["namespace"],
                "uid": about["uid"],
            },
            "hostPath": {"path": str(place), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
        },
    }
