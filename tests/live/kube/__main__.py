"""Builds Kubernetes, keeps a cluster, or runs the suite on one.

python -m tests.live.kube build              # minutes, once
python -m tests.live.kube hold [DIRECTORY]   # until its input ends
python -m tests.live.kube suite              # on a cluster of its own, or that of TEST_KUBERNETES
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agentsvc.base.values import now
from agentsvc.cli.sandbox_image import default_name
from tests.live import engines
from tests.live.containers import our_engine
from tests.live.kube import build, images, record
from tests.live.kube.cluster import VARIABLE, Cluster, ClusterLease

_PASSED: Final = re.compile(r"(\d+) passed")
_IMAGES: Final = (engines.BASE, default_name(), images.SERVER)
_ALONE: Final = ("tests/live/kube/test_inside.py", "tests/live/kube/test_faults.py")
"""There is one namespace of the server's, and faults are everybody's."""
_SUITE: Final = (
    (
        "-n",
        "4",
        "--dist",
        "worksteal",
        "tests/live/kube",
        *(f"--ignore={file}" for file in _ALONE),
    ),
    ("-n", "0", *_ALONE),
)


def _hold(directory: Path | None, nodes: int) -> None:
    with ClusterLease(directory, nodes=nodes) as cluster:
        _say(f"export {VARIABLE}={cluster.plan.place} KUBECONFIG={cluster.plan.kubeconfig}")
        for number in range(1, nodes + 1):
            _say(f"node {number}: docker --host unix://{cluster.plan.engine(number)}")
        sys.stdin.read()


def _suite(more: list[str]) -> int:
    plugin = record.digest()
    with _cluster() as cluster:
        _load_images(cluster)
        environment = os.environ | {VARIABLE: str(cluster.plan.place)}
        passed = 0
        for part in _SUITE:
            code, count = _run_tests([*part, *more], environment)
            passed += count
            if code != 0:
                return code
        version = cluster.admin.get("/version")["gitVersion"]
    if not more:
        record.write(now(), f"Kubernetes {version}", passed, plugin)
    return 0


@contextlib.contextmanager
def _cluster() -> Iterator[Cluster]:
    if told := os.environ.get(VARIABLE):
        yield Cluster(Path(told))
        return
    with ClusterLease() as cluster:
        yield cluster


def _load_images(cluster: Cluster) -> None:
    """Give the nodes the images that pods are made of, which an engine of this machine builds."""
    if all(cluster.has(image) for image in _IMAGES):
        return
    directory = Path(tempfile.mkdtemp(prefix="tkube-engine-"))
    with our_engine(directory) as engine:
        images.build_server(engine.socket)
        for image in _IMAGES:
            cluster.load(image, engine.socket)
    # It goes with its last user, in its own time.
    place = directory / "engine"
    engines.wait(lambda: not place.exists(), 3 * engines.STOP_SECONDS, "the engine is gone")
    shutil.rmtree(directory)


def _run_tests(arguments: list[str], environment: dict[str, str]) -> tuple[int, int]:
    """Return the exit code and how many tests have passed, and show what pytest says."""
    command = [sys.executable, "-m", "pytest", "-q", *arguments]
    passed = 0
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, cwd=record.ROOT
    ) as tests:
        assert tests.stdout is not None
        for line in tests.stdout:
            _say(line.rstrip("\n"))
            if found := _PASSED.search(line):
                passed = int(found[1])
    return tests.returncode, passed


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # what it is asked for


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.live.kube")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build the programs, unless they are there")
    hold = verbs.add_parser("hold", help="keep a cluster until the input ends")
    hold.add_argument("directory", type=Path, nargs="?")
    hold.add_argument("--nodes", type=int, default=2)
    suite = verbs.add_parser("suite", help="run everything here, and write down that it passed")
    suite.add_argument("more", nargs="*", help="arguments of pytest; then nothing is written down")
    given = parser.parse_args()
    if given.verb == "build":
        _say(str(build.programs()))
    elif given.verb == "hold":
        _hold(given.directory, given.nodes)
    else:
        return _suite(given.more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
