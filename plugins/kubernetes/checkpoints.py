"""Checkpoints of a sandbox's files, kept in its claim by a container beside the agent's.

The agent has an empty volume over where they are. Which there are is noted at the claim, and so is the
one to which the next pod goes back, by an init container.
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
    """The checkpoints of the sandboxes of one installation."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._taking = LongTasks()

    async def close(self) -> None:
        """End what is being copied; what there is of it goes with the next checkpoint."""
        await self._taking.close()

    async def abandon(self, sandbox_id: str) -> None:
        """End what is being copied in a sandbox that is to go."""
        await self._taking.abandon(sandbox_id)

    async def take(
        self, pod: Json, sandbox_id: str, checkpoint_id: str, *, keep: int, max_bytes: int
    ) -> None:
        """Keep a checkpoint of a pod that runs; see `RuntimeBackend.checkpoint`."""
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
        """Have the next pod of a claim start with the files of a checkpoint."""
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
    """Return the checkpoints that are noted at a claim, the oldest first."""
    return read_checkpoints(names.annotations_of(claim).get(names.CHECKPOINTS, ""))


def program(order: Order, context: PodContext, owner: Json, files: Mapping[str, bytes]) -> Json:
    """Return the files of the program that copies."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": objects.metadata_of(order, context, owner=owner),
        "data": {_key(path): content.decode() for path, content in files.items()},
    }


def beside(pod: Json, order: Order, files: Mapping[str, bytes]) -> Json:
    """Return a pod with a container that keeps checkpoints, where the agent does not see them."""
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
    """Say whether the next pod of a claim is to put files back, be checkpoints kept or not."""
    return names.ROLLBACK in names.annotations_of(claim)


def going_back(pod: Json, claim: Json) -> Json:
    """Return a pod that puts files back before it starts, where that is noted at its claim."""
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
    """Return the directories that are kept: of the working directory and the home, what the claim has."""
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
