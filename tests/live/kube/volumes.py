"""Makes a directory for each volume claim of a cluster, as a cloud's provisioner makes a disk.

All nodes of a cluster of the tests see the same files, so a claim follows its pod to any of them.
"""

import http.client
import os
import shutil
import threading
from pathlib import Path
from typing import Any, Final

from tests.live.kube.api import Api, Refused

CLASS: Final = "directories"
"""The storage class, which is the default one."""

_NAME: Final = "tests.agentsvc/directories"
_CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
_VOLUMES: Final = "/api/v1/persistentvolumes"
_PAUSE_SECONDS: Final = 0.3
_GROUP: Final = 1000
"""Of all pods here."""


def serve(api: Api, directory: Path, ended: threading.Event) -> None:
    """Make and remove volumes until told to end; while the API is away, wait for it."""
    while not ended.wait(_PAUSE_SECONDS):
        try:
            if api.find(f"{_CLASSES}/{CLASS}") is None:
                api.create(_CLASSES, _storage_class())
            _look(api, directory)
        except (OSError, http.client.HTTPException, Refused):
            continue


def _look(api: Api, directory: Path) -> None:
    volumes = {one["metadata"]["name"]: one for one in api.items(_VOLUMES)}
    for claim in api.items("/api/v1/persistentvolumeclaims"):
        name = f"claim-{claim['metadata']['uid']}"
        if _is_wanted(claim) and name not in volumes:
            place = directory / name
            place.mkdir(exist_ok=True)
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
