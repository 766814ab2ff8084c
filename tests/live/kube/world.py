"""The inside of a cluster: the first process of process, network and mount namespaces of their own.

It starts everything, starts again what ends, and ends when its input does, that is with whoever has
started it, however that ends. With it the kernel ends all its processes, and takes their mounts and
networks away; control groups and files it removes itself.
"""

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tests.live import engines
from tests.live.engines import EngineFailed
from tests.live.kube import dns, fences, volumes
from tests.live.kube.api import Api
from tests.live.kube.plan import PAUSE_IMAGE, Plan

START_SECONDS: Final = 180.0
_STOP_SECONDS: Final = 20.0
_BRIDGE: Final = "cluster"
_GROUPS: Final = Path("/sys/fs/cgroup")
_BARE = ("mount", "-t", "tmpfs", "tmpfs")


class _World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.api = Api(plan.url, plan.admin, plan.authority)
        self._ended = threading.Event()
        self._commands: dict[str, Sequence[str]] = {}
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._holders: list[subprocess.Popen[bytes]] = []
        self._nodes: dict[str, Sequence[str]] = {}
        """By name, what enters them."""

    def run(self) -> None:
        threading.Thread(target=self._wait_for_the_end, daemon=True).start()
        signal.signal(signal.SIGTERM, lambda *_: self._ended.set())
        _do(*_BARE, "/run")
        self._connect()
        self._start("etcd", self.plan.etcd())
        self._start("api", self.plan.api_server())
        self._until(self.api.is_ready, "the API server is ready")
        for name, command in self.plan.control_services().items():
            self._start(name, command)
        self._begin(volumes.serve, self.api, self.plan.volumes)
        self._begin(dns.serve, self.api, self.plan.control)
        for number in range(1, self.plan.nodes + 1):
            self._add_node(number)
        self._begin(fences.serve, self.api, self._nodes)
        self._until(self._are_nodes_ready, "the nodes are ready")
        (self.plan.place / "ready").touch()
        while not self._ended.wait(0.1):
            self._look_after_services()

    def _begin(self, serve: Callable[..., None], *about: object) -> None:
        threading.Thread(target=serve, args=(*about, self._ended), daemon=True).start()

    def _wait_for_the_end(self) -> None:
        sys.stdin.buffer.read()
        self._ended.set()

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if self._ended.is_set():
                raise EngineFailed("it was told to end")
            self._look_after_services()
            return is_so()

        engines.wait(look, START_SECONDS, what)

    # Networks

    def _connect(self) -> None:
        _do("ip", "link", "set", "lo", "up")
        engines.wait(lambda: "gate" in engines.links(), START_SECONDS, "there is a way in")
        _do("ip", "address", "add", f"{self.plan.gate}/30", "dev", "gate")
        _do("ip", "link", "set", "gate", "up")
        _do("ip", "route", "add", "default", "via", self.plan.machine)
        _do("ip", "link", "add", _BRIDGE, "type", "bridge")
        _do("ip", "address", "add", f"{self.plan.control}/24", "dev", _BRIDGE)
        _do("ip", "link", "set", _BRIDGE, "up")
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def _add_node(self, number: int) -> None:
        """Give a node a network and mounts of its own, and start its engine and its kubelet."""
        self.plan.node(number).mkdir()
        alone = ("unshare", "--net", "--mount", "--propagation", "private")
        mounts = " && ".join(" ".join((*_BARE, place)) for place in ("/run", "/var/log"))
        # What is between two pods of a node does not leave its bridge, and is held there, too.
        switches = " && ".join(
            f"echo 1 >/proc/sys/net/{name}"
            for name in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables")
        )
        say = f"ip link set lo up && {mounts} && {switches} && echo ready && exec sleep infinity"
        holder = subprocess.Popen([*alone, "sh", "-c", say], stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout is not None
        if not holder.stdout.readline():
            raise EngineFailed(f"there is no place for node {number}")
        enter = (
            "nsenter",
            f"--net=/proc/{holder.pid}/ns/net",
            f"--mount=/proc/{holder.pid}/ns/mnt",
        )
        link = f"node{number}"
        self._nodes[link] = enter
        fences.load(enter, fences.BEGIN)
        address = self.plan.node_address(number)
        _do(
            *("ip", "link", "add", link, "type", "veth"),
            *("peer", "eth0", "netns", str(holder.pid)),
        )
        _do("ip", "link", "set", link, "master", _BRIDGE, "up")
        _do(*enter, "ip", "address", "add", f"{address}/24", "dev", "eth0")
        _do(*enter, "ip", "link", "set", "eth0", "up")
        _do(*enter, "ip", "route", "add", "default", "via", self.plan.control)
        _do("ip", "route", "add", f"{self.plan.pod_network(number)}.0/24", "via", address)
        self._start(f"engine{number}", [*enter, *self.plan.engine_command(number)])
        socket = self.plan.engine(number)
        self._until(lambda: engines.answers(socket), f"the engine of node {number} answers")
        _import_pause(socket, self.plan.pause_program)
        self._start(f"kubelet{number}", [*enter, *self.plan.kubelet(number)])
        self._start(f"proxy{number}", [*enter, *self.plan.proxy(number)])

    def _are_nodes_ready(self) -> bool:
        found = self.api.items("/api/v1/nodes")
        ready = [
            node
            for node in found
            for one in node["status"].get("conditions", ())
            if (one["type"], one["status"]) == ("Ready", "True")
        ]
        return len(ready) == self.plan.nodes

    # Services

    def _start(self, name: str, command: Sequence[str]) -> None:
        self._commands[name] = command
        with self.plan.log(name).open("ab") as log:
            service = subprocess.Popen(
                command,
                cwd=self.plan.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._services[name] = service
        self.plan.pid(name).write_text(str(service.pid))

    def _look_after_services(self) -> None:
        """Start again what has ended, unless it is held back; collect what nobody waits for."""
        _collect([*self._services.values(), *self._holders])
        for name, service in list(self._services.items()):
            if service.poll() is not None and not self.plan.held(name).exists():
                for pid_file in self.plan.place.glob("n*/dockerd.pid"):
                    _remove_if_stale(pid_file)
                self._start(name, self._commands[name])

    # The end

    def end(self) -> None:
        self._ended.set()
        for name in sorted(self._services, key=lambda one: not one.startswith("kubelet")):
            self._services[name].kill()
        deadline = time.monotonic() + _STOP_SECONDS
        while others := _others():
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _collect([])
            if time.monotonic() > deadline:
                print(f"these processes do not end: {others}", flush=True)  # noqa: T201  # to the log
                break
            time.sleep(0.05)
        # Both ends at once; the kernel alone waits for what the last connections have to say.
        engines.remove_links(engines.links() & {"gate"})
        engines.unmount(self.plan.place)
        _remove_groups(self.plan.group)
        shutil.rmtree(self.plan.place, ignore_errors=True)


def _others() -> list[int]:
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and engines.is_alive(pid)]


def _collect(waited_for: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Take note of every process that has ended, also of those that lost their parents."""
    by_pid = {one.pid: one for one in waited_for}
    peek = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, peek)) is not None:
            if ended.si_pid in by_pid:
                by_pid[ended.si_pid].poll()
            else:
                os.waitpid(ended.si_pid, 0)


def _remove_if_stale(pid_file: Path) -> None:
    """Remove what an engine that was killed has left, which keeps the next one from starting."""
    if not engines.is_alive(int(pid_file.read_text())):
        pid_file.unlink()
        (pid_file.parent / "exec/containerd/containerd.pid").unlink(missing_ok=True)


def _remove_groups(name: str) -> None:
    for top in (_GROUPS, *_GROUPS.iterdir()):
        for directory, _, _ in os.walk(top / name, topdown=False):
            with contextlib.suppress(OSError):
                Path(directory).rmdir()


def _import_pause(socket: Path, program: Path) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(program, "pause")
    archive.seek(0)
    repository, _, tag = PAUSE_IMAGE.partition(":")
    changes = quote('CMD ["/pause"]')
    url = f"/images/create?fromSrc=-&repo={repository}&tag={tag}&changes={changes}"
    status, said = engines.ask(socket, "POST", url, body=archive)
    if status != 200 or b'"error"' in said:
        raise EngineFailed(f"the pause image cannot be imported: {said.decode()[-500:]}")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineFailed(f"`{' '.join(command)}`: {done.stderr.strip()}")


def main() -> None:
    world = _World(Plan.of(Path(sys.argv[1])))
    try:
        world.run()
    except EngineFailed as exc:
        print(f"failed: {exc}", flush=True)  # noqa: T201  # to the log
        for log in sorted(world.plan.place.glob("*.log")):
            print(f"--- {log.name}\n{engines.tail(log)}", flush=True)  # noqa: T201  # to the log
    finally:
        world.end()


if __name__ == "__main__":
    main()
