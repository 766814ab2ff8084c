"""A node of the tests: runs the pods of a store as processes, each at an address of its own."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from base64 import b64decode
from pathlib import Path
from typing import Any

from agentsvc.base.values import now
from tests.kube.store import Store

type Json = dict[str, Any]


class Node:
    """Starts what is scheduled, says how it is, and ends what is deleted."""

    def __init__(self, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._numbers = itertools.count(2)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._processes: dict[str, Process] = {}
        self.logs: dict[str, list[str]] = {}
        self._in_touch = asyncio.Event()
        self._in_touch.set()

    def cut(self, *, is_cut: bool) -> None:
        """Have the node hear nothing and say nothing, or let it be in touch again."""
        if is_cut:
            self._in_touch.clear()
        else:
            self._in_touch.set()

    def start(self, pod: Json) -> None:
        """Have a pod run."""
        uid = pod["metadata"]["uid"]
        loop = asyncio.get_running_loop()
        self._tasks[uid] = loop.create_task(self._run(pod), name=f"pod {uid}")

    async def end(self, pod: Json, grace_seconds: float) -> None:
        """End a pod and take it out of the store; one that does not listen is killed."""
        uid = pod["metadata"]["uid"]
        if grace_seconds:
            await self._in_touch.wait()
        process = self._processes.get(uid)
        if process and grace_seconds:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await process.wait()
        # Before it is killed, or it might be said to have failed.
        if task := self._tasks.pop(uid, None):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if process:
            _signal(process, signal.SIGKILL)
            await process.wait()
        self._store.remove("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        shutil.rmtree(self._directory / uid, ignore_errors=True)
        self.logs.pop(uid, None)

    async def close(self) -> None:
        """Kill whatever still runs."""
        for process in self._processes.values():
            _signal(process, signal.SIGKILL)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def environment_of(self, pod: Json) -> dict[str, str]:
        """Return the environment of a pod's container."""
        namespace = pod["metadata"]["namespace"]
        found = {"PATH": os.environ["PATH"]}
        for one in container_of(pod).get("env") or ():
            if "value" in one:
                value = one["value"].replace("$$", "$")
                found[one["name"]] = self._memory_of(pod).get(value, value)
            else:
                key = one["valueFrom"]["secretKeyRef"]
                secret = self._store.get("secrets", namespace, key["name"])
                found[one["name"]] = b64decode(secret["data"][key["key"]]).decode()
        return found

    def place_of(self, pod: Json, path: str) -> Path:
        """Return where a path below a pod's workspace is on this machine."""
        mount = _mounts(pod)["workspace"]
        return self._directory / claim_of(pod) / Path(path).relative_to(mount)

    def here(self, pod: Json, container: Json, text: str) -> str:
        """Return a text with the paths of a container's volumes as they are on this machine."""
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        for path in sorted(mounts, key=len, reverse=True):
            place = str(self._volume_of(pod, mounts[path]))
            text = place if text == path else text.replace(f"{path}/", f"{place}/")
        return text

    def _volume_of(self, pod: Json, name: str) -> Path:
        return self._directory / (
            claim_of(pod) if name == "workspace" else Path(pod["metadata"]["uid"], name)
        )

    def environment_in(self, pod: Json, container: Json) -> dict[str, str]:
        """Return the environment of any container of a pod."""
        is_main = container is container_of(pod)
        return self.environment_of(pod) if is_main else {"PATH": os.environ["PATH"]}

    def directory_in(self, pod: Json, container: Json) -> Path:
        """Return where the commands of a container begin."""
        is_main = container is container_of(pod)
        path = container["workingDir"] if is_main else _mounts(pod)["workspace"]
        return self.place_of(pod, path)

    def _memory_of(self, pod: Json) -> dict[str, str]:
        """Return where the volumes of a pod that are in memory are on this machine, by their paths."""
        mounts, top = _mounts(pod), self._directory / pod["metadata"]["uid"]
        return {
            mounts[volume["name"]]: str(top / volume["name"])
            for volume in pod["spec"]["volumes"]
            if "emptyDir" in volume and volume["name"] in mounts
        }

    def forget_files(self, claim: str) -> None:
        shutil.rmtree(self._directory / claim, ignore_errors=True)

    async def _run(self, pod: Json) -> None:
        uid, container = pod["metadata"]["uid"], container_of(pod)
        await self._wait_for_files(pod)
        place = self.place_of(pod, container["workingDir"])
        for directory in (str(place), *self._memory_of(pod).values()):
            await asyncio.to_thread(os.makedirs, directory, exist_ok=True)
        address = f"127.83.{os.getpid() % 250}.{next(self._numbers)}"
        self._write_files(pod)
        if (failed := await self._prepare(pod)) is not None:
            self._say(pod, failed)
            return
        self.logs[uid] = []
        env = {**self.environment_of(pod), "KIT_HOST": address}
        argv = [*container.get("command", ()), *container["args"]]
        argv = [part.replace("$$", "$") for part in argv]
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable if argv[0] == "python3" else argv[0],
                *argv[1:],
                cwd=place,
                env=env,
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            self._say(pod, _ended(128, "StartError", str(exc)))
            return
        self._processes[uid] = process
        self._say(pod, _running(pod, address, is_ready=False))
        probe = container.get("readinessProbe")
        ready = asyncio.gather(self._watch_port(pod, address, probe))
        try:
            await self._keep_log(process, self.logs[uid])
            code = await process.wait()
        finally:
            ready.cancel()
            del self._processes[uid]
        self._say(pod, _ended(code if code >= 0 else 128 - code, "Error" if code else "Completed"))

    def _write_files(self, pod: Json) -> None:
        """Write the volumes of a pod that are made of texts."""
        for volume in pod["spec"]["volumes"]:
            if (told := volume.get("configMap")) is None:
                continue
            found = self._store.get("configmaps", pod["metadata"]["namespace"], told["name"])
            for item in told["items"]:
                path = self._volume_of(pod, volume["name"]) / item["path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(found["data"][item["key"]])

    async def _prepare(self, pod: Json) -> Json | None:
        """Run what comes before a pod's containers; return its status where that has failed."""
        for container in pod["spec"].get("initContainers") or ():
            argv = [self.here(pod, container, part) for part in container["command"]]
            process = await asyncio.create_subprocess_exec(
                *argv,
                env=self.environment_in(pod, container),
                stdout=PIPE,
                stderr=STDOUT,
                start_new_session=True,
            )
            said, _ = await process.communicate()
            if process.returncode:
                ended = {
                    "exitCode": process.returncode,
                    "reason": "Error",
                    "message": said.decode(),
                }
                told = {"name": container["name"], "state": {"terminated": ended}}
                return {"phase": "Failed", "initContainerStatuses": [told]}
        return None

    async def _wait_for_files(self, pod: Json) -> None:
        """Wait until the claim of a pod is filled from what it is made of, if it is made of anything."""
        key = ("persistentvolumeclaims", pod["metadata"]["namespace"], claim_of(pod))
        while "dataSource" in (claim := self._store.objects.get(key) or {"spec": {}})["spec"]:
            if (claim.get("status") or {}).get("phase") == "Bound":
                return
            await self._store.changed.wait()

    async def _watch_port(self, pod: Json, address: str, probe: Json | None) -> None:
        while probe is not None:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(address, probe["tcpSocket"]["port"])
                writer.close()
                break
            await asyncio.sleep(0.01)
        self._say(pod, _running(pod, address, is_ready=True))

    async def _keep_log(self, process: Process, lines: list[str]) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            moment = now().isoformat().replace("+00:00", "Z")
            lines.append(f"{moment} {line.decode().rstrip()}\n")

    def _say(self, pod: Json, status: Json) -> None:
        metadata = pod["metadata"]
        key = ("pods", metadata["namespace"], metadata["name"])
        known = self._store.objects.get(key)
        if (
            known is not None
            and known["metadata"]["uid"] == metadata["uid"]
            and self._in_touch.is_set()
        ):
            spec = {**known["spec"], "nodeName": "node1"}
            changed = {**known, "metadata": dict(known["metadata"]), "spec": spec, "status": status}
            self._store.put("pods", changed)


def container_of(pod: Json) -> Json:
    """Return the container that is the sandbox."""
    found: Json = pod["spec"]["containers"][0]
    return found


def claim_of(pod: Json) -> str:
    """Return the name of the claim with a pod's files."""
    claims = [one.get("persistentVolumeClaim") or {} for one in pod["spec"]["volumes"]]
    return next((str(one["claimName"]) for one in claims if one), "")


def _mounts(pod: Json) -> dict[str, str]:
    return {one["name"]: one["mountPath"] for one in container_of(pod)["volumeMounts"]}


def _running(pod: Json, address: str, *, is_ready: bool) -> Json:
    said = "True" if is_ready else "False"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": kind, "status": said} for kind in ("ContainersReady", "Ready")],
        "containerStatuses": [
            {
                "name": container_of(pod)["name"],
                "ready": is_ready,
                "state": {"running": {}},
            }
        ],
    }


def _ended(code: int, reason: str, message: str = "") -> Json:
    ended = {"exitCode": code, "reason": reason, "message": message}
    return {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "sandbox", "ready": False, "state": {"terminated": ended}}],
    }


def _signal(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
