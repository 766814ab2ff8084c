"""A cluster as tests see it: started, used, made to fail, and gone at the end."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.live import engines, podman
from tests.live.engines import EngineFailed
from tests.live.kube import build
from tests.live.kube.api import Api
from tests.live.kube.plan import API_SERVICE, Plan
from tests.live.kube.world import START_SECONDS
from tests.live.tls import make_certificates

VARIABLE: Final = "TEST_KUBERNETES"
"""The directory of a cluster that runs, for whoever tests on it."""

_STOP_SECONDS: Final = 90.0
_SECONDS_OF_TEN: Final = range(83, 100)


class Cluster:
    """A cluster that runs, as its directory describes it."""

    def __init__(self, directory: Path) -> None:
        self.plan = Plan.of(directory)
        self.admin = Api(self.plan.url, self.plan.admin, self.plan.authority)

    def as_user(self, token: str) -> Api:
        return Api(self.plan.url, token, self.plan.authority)

    def load(self, image: str, source: Path) -> None:
        """Give an engine's image to all nodes."""
        for number in range(1, self.plan.nodes + 1):
            target = self.plan.engine(number)
            with engines.one_at_a_time(target, "image"):
                podman.carry_image(image, source, target)

    def has(self, image: str) -> bool:
        """Say whether all nodes have an image."""
        return all(
            engines.ask(self.plan.engine(number), "GET", f"/images/{image}/json")[0] == 200
            for number in range(1, self.plan.nodes + 1)
        )

    # Faults

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Keep a service, such as `etcd`, from doing anything for a while."""
        self._signal(name, "STOP")
        try:
            yield
        finally:
            self._signal(name, "CONT")

    @contextlib.contextmanager
    def ended(self, name: str) -> Iterator[None]:
        """End a service as a power cut would, and have it started again afterwards."""
        held = self.plan.held(name)
        held.touch()
        try:
            self._signal(name, "KILL")
            yield
        finally:
            held.unlink()

    def restart(self, name: str) -> None:
        """End a service and wait until another runs in its place."""
        before = self.plan.pid(name).read_text()
        self._signal(name, "KILL")

        def is_back() -> bool:
            return self.plan.pid(name).read_text() not in ("", before)

        engines.wait(is_back, START_SECONDS, f"{name} is started again")

    @contextlib.contextmanager
    def cut_off(self, number: int) -> Iterator[None]:
        """Take the network away from a node, and all pods on it, for a while."""
        self._inside("ip", "link", "set", f"node{number}", "down")
        try:
            yield
        finally:
            self._inside("ip", "link", "set", f"node{number}", "up")
            # The link's end is what takes this away.
            way = (f"{self.plan.pod_network(number)}.0/24", "via", self.plan.node_address(number))
            self._inside("ip", "route", "replace", *way)

    def _signal(self, name: str, number: str) -> None:
        self._inside("kill", f"-{number}", self.plan.pid(name).read_text())

    def _inside(self, *command: str) -> None:
        world = (self.plan.place / "world.pid").read_text()
        enter = ("nsenter", "--target", world, "--pid", "--mount", "--net", *command)
        subprocess.run(enter, check=True, capture_output=True)


class ClusterLease:
    """Starts a cluster, and ends it however the process that did so ends.

    Raises EngineFailed where there can be none.
    """

    def __init__(self, directory: Path | None = None, *, nodes: int = 2) -> None:
        """Choose the directory, whose name has to be short for the sockets in it."""
        self.directory = directory or Path(tempfile.mkdtemp(prefix="tkube-"))
        self._nodes = nodes
        self._plan: Plan | None = None
        self._world: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.directory.with_suffix(".log")

    def __enter__(self) -> Cluster:
        if os.geteuid() != 0:
            raise EngineFailed("a cluster is started by root only")
        programs = build.programs()
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.directory.chmod(0o755)
        try:
            self._plan = self._make_plan(programs)
            self._start(self._plan)
        except BaseException:
            self.release()
            raise
        self.log.unlink(missing_ok=True)
        return Cluster(self.directory)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """End the cluster, and wait until nothing of it is left."""
        world, self._world = self._world, None
        if world is not None:
            assert world.stdin is not None
            world.stdin.close()
            try:
                world.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # The first process of the world ends with it, and so do all others.
                world.kill()
                world.wait()
        if self._plan is not None:
            # It goes with its other end, but not at once.
            engines.remove_links(engines.links() & {self._plan.link})
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_plan(self, programs: Path) -> Plan:
        plan = Plan(
            directory=str(self.directory),
            programs=str(programs),
            second=_free_network(),
            nodes=self._nodes,
            admin=secrets.token_urlsafe(),
            stranger=secrets.token_urlsafe(),
        )
        plan.save()
        plan.write_files()
        (plan.place / "tls").mkdir()
        make_certificates(plan.place / "tls", plan.control, API_SERVICE)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (plan.place / "accounts.pem").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        return plan

    def _start(self, plan: Plan) -> None:
        alone = ("--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount")
        with self.log.open("wb") as log:
            self._world = subprocess.Popen(
                [
                    *("unshare", *alone, "--propagation", "private"),
                    *(sys.executable, "-m", "tests.live.kube.world", plan.directory),
                ],
                cwd=Path(__file__).parents[3],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        children = Path(f"/proc/{self._world.pid}/task/{self._world.pid}/children")
        self._until(lambda: bool(children.read_text()), "the cluster begins")
        first = children.read_text().split()[0]
        (plan.place / "world.pid").write_text(first)
        _do("ip", "link", "add", plan.link, "type", "veth", "peer", "gate", "netns", first)
        _do("ip", "address", "add", f"{plan.machine}/30", "dev", plan.link)
        _do("ip", "link", "set", plan.link, "up")
        _do("ip", "route", "add", plan.all_addresses, "via", plan.gate)
        self._until((plan.place / "ready").exists, "the cluster is ready")

    def _until(self, is_so: Callable[[], bool], what: str) -> None:
        world = self._world
        assert world is not None

        def look() -> bool:
            if world.poll() is not None:
                raise EngineFailed(f"the cluster does not start:\n{self.log.read_text()[-6000:]}")
            return is_so()

        engines.wait(look, 2 * START_SECONDS, what)


def _free_network() -> int:
    """Return a number that no address of this machine has in second place after 10."""
    told = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    for number in _SECONDS_OF_TEN:
        if f"10.{number}." not in told:
            return number
    raise EngineFailed("no network is free on this machine")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineFailed(f"`{' '.join(command)}`: {done.stderr.strip()}")
