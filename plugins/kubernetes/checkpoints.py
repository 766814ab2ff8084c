"""Checkpoints of a sandbox's files, kept in its claim by a container beside the agent's.

In the agent's container, an empty volume is mounted over their directory. Annotations of the claim
list the checkpoints, and name the one that an init container of the next pod restores.
"""

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentsvc.base import Conflict, OrderRejected, new_id
from agentsvc.plugin import (
    CHECKPOINT_OUTPUT_BYTES,
    CHECKPOINT_SECONDS,
    Checkpoint,
    LongTasks,
    Order,
    check_copied,
    is_below,
    kept_directories,
    read_checkpoints,
)

from . import commands, names, objects, plan
from .api import MERGE, Api
from .objects import PodContext

type Json = dict[str, Any]

CONTAINER: Final = "checkpoints"

_PROGRAM: Final = "/opt/agentsvc-checkpoints"
_CLAIM: Final = "/opt/agentsvc-claim"
_HIDDEN: Final = ".agentsvc"
_RESOURCES: Final = {"requests": {"cpu": "1m", "memory": "16Mi"}, "limits": {"memory": "256Mi"}}
_PYTHON: Final = ("python3", "-I", "-S", _PROGRAM)
# The first process of a container takes no signal that it does not ask for.
_WAIT: Final = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
# A claim that was made of another one has the checkpoints of that, which are not this sandbox's.
_COPY: Final = (
    'for other in "$0"/*; do [ "$other" = "$1" ] || rm -rf -- "$other"; done; shift; exec "$@"'
)


class Checkpoints:
    """Takes checkpoints of the sandboxes of one installation, and records which one to restore."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._taking = LongTasks()

    async def close(self) -> None:
        """Cancel the copies in progress; the next checkpoint removes what they left."""
        await self._taking.close()

    async def abandon(self, sandbox_id: str) -> None:
        """Cancel the copy in progress in a sandbox that is to be deleted."""
        await self._taking.abandon(sandbox_id)

    async def take(
        self, pod: Json, sandbox_id: str, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Take a checkpoint in a running pod; see `RuntimeBackend.checkpoint`."""
        paths = _paths(pod)

        async def take() -> int:
            # What has been noted is not removed before what comes after it is noted, too.
            copy = ["copy", _store(sandbox_id), checkpoint_id, str(keep), str(max_bytes), *paths]
            index = await self._run(pod, sandbox_id, copy)
            await self._note(pod, sandbox_id, {names.CHECKPOINTS: index, names.ROLLBACK: None})
            await self._run(pod, sandbox_id, ["trim", _store(sandbox_id)])
            return 0

        await self._taking.go_on(sandbox_id, take)

    async def roll_back(self, claim: Json, sandbox_id: str, checkpoint_id: str) -> None:
        """Record the checkpoint that the next pod restores; raises OrderRejected if unknown."""
        if checkpoint_id not in {one.id for one in listed(claim)}:
            raise OrderRejected("There is no such checkpoint")
        await self._note(claim, sandbox_id, {names.ROLLBACK: f"{new_id()} {checkpoint_id}"})

    async def _run(self, pod: Json, sandbox_id: str, args: Sequence[str]) -> str:
        store = _store(sandbox_id)
        ended = await commands.execute(
            self._api,
            pod["metadata"]["namespace"],
            sandbox_id,
            ["/bin/sh", "-c", _COPY, posixpath.dirname(store), store, *_PYTHON, *args],
            env={},
            time_limit=CHECKPOINT_SECONDS,
            max_output=CHECKPOINT_OUTPUT_BYTES,
            container=CONTAINER,
        )
        check_copied(ended)
        return ended.stdout.decode()

    async def _note(self, owned: Json, sandbox_id: str, notes: Mapping[str, str | None]) -> None:
        namespace = owned["metadata"]["namespace"]
        path = names.path("persistentvolumeclaims", namespace, names.main(sandbox_id))
        body = {"metadata": {"annotations": notes}}
        if await self._api.ask("PATCH", path, body=body, content_type=MERGE, expect=(404,)) is None:
            raise Conflict("The sandbox's files are gone")


def listed(claim: Json) -> list[Checkpoint]:
    """Return the checkpoints recorded at a claim, oldest first."""
    return read_checkpoints(names.annotations_of(claim).get(names.CHECKPOINTS, ""))


def program(order: Order, context: PodContext, owner: Json, files: Mapping[str, bytes]) -> Json:
    """Return the ConfigMap with the files of the checkpoint program."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": objects.metadata_of(order, context, owner=owner),
        "data": {_key(path): content.decode() for path, content in files.items()},
    }


def beside(pod: Json, order: Order, files: Mapping[str, bytes]) -> Json:
    """Return a pod with a container that takes checkpoints, hidden from the agent."""
    spec, top = pod["spec"], posixpath.normpath(plan.to_options(order).workspace)
    [agent], [prepare] = spec["containers"], spec["initContainers"]
    hidden = {"name": "hidden", "mountPath": f"{top}/{_HIDDEN}", "readOnly": True}
    keeper = {
        "name": CONTAINER,
        "image": agent["image"],
        "imagePullPolicy": agent["imagePullPolicy"],
        "command": ["/bin/sh", "-c", _WAIT],
        "workingDir": "/",
        "resources": _RESOURCES,
        "volumeMounts": [
            {"name": "workspace", "mountPath": top},
            hidden,
            {"name": "workspace", "mountPath": _CLAIM},
            {"name": "checkpoints", "mountPath": _PROGRAM, "readOnly": True},
        ],
        "securityContext": objects.hardened(read_only=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    configured = {
        "name": names.main(order.sandbox_id),
        "items": [{"key": _key(path), "path": path} for path in files],
    }
    more = {
        # Who makes the directory is who writes to it.
        "initContainers": [
            {**prepare, "command": [*prepare["command"], f"{top}/{_HIDDEN}"]},
        ],
        "containers": [{**agent, "volumeMounts": [*agent["volumeMounts"], hidden]}, keeper],
        "volumes": [
            *spec["volumes"],
            {"name": "hidden", "emptyDir": {"sizeLimit": "1Mi"}},
            {"name": "checkpoints", "configMap": configured},
        ],
    }
    return {**pod, "spec": {**spec, **more}}


def is_going_back(claim: Json) -> bool:
    """Return whether the claim's next pod restores a checkpoint, even if none are taken now."""
    return names.ROLLBACK in names.annotations_of(claim)


def going_back(pod: Json, claim: Json) -> Json:
    """Return a pod with an init container that restores the checkpoint recorded at its claim.

    Without such a record, or a checkpoint container, return the pod unchanged.
    """
    rollback = names.annotations_of(claim).get(names.ROLLBACK)
    keeper = _keeper(pod)
    if not rollback or keeper is None:
        return pod
    spec = pod["spec"]
    sandbox_id = names.labels_of(pod)[names.SANDBOX]
    command = [*_PYTHON, "restore", _store(sandbox_id), rollback]
    restoring = {**keeper, "name": objects.RESTORE, "command": command}
    return {**pod, "spec": {**spec, "initContainers": [*spec["initContainers"], restoring]}}


def _keeper(pod: Json) -> Json | None:
    return next((one for one in pod["spec"]["containers"] if one["name"] == CONTAINER), None)


def _paths(pod: Json) -> list[str]:
    """Return the directories to copy: the working directory, and the home if it is in the claim."""
    if _keeper(pod) is None:
        raise OrderRejected(
            "Its pod was made when the server kept no checkpoints: start the sandbox again"
        )
    agent = pod["spec"]["containers"][0]
    env = {one["name"]: one.get("value", "") for one in agent.get("env") or ()}
    [top] = [one["mountPath"] for one in agent["volumeMounts"] if one["name"] == "workspace"]
    home = posixpath.normpath(env.get("HOME") or "/")
    return kept_directories(env, agent["workingDir"], home if is_below(home, top) else "")


def _store(sandbox_id: str) -> str:
    return f"{_CLAIM}/{_HIDDEN}/{sandbox_id}"


def _key(path: str) -> str:
    return path.replace("/", "-")
