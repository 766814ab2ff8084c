"""Builds Kubernetes, keeps a cluster, or runs the suite on one.

python -m tests.live.kube build              # minutes, once
python -m tests.live.kube hold [DIRECTORY]   # until it is ended or its input is
"""

import argparse
import sys
from pathlib import Path

from tests.live.kube import build
from tests.live.kube.cluster import ClusterLease


def _hold(directory: Path | None, nodes: int) -> None:
    with ClusterLease(directory, nodes=nodes) as cluster:
        _say(f"export KUBECONFIG={cluster.plan.kubeconfig}")
        for number in range(1, nodes + 1):
            _say(f"node {number}: docker --host unix://{cluster.plan.engine(number)}")
        sys.stdin.read()


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  # what it is asked for


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.live.kube")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("build", help="build the programs, unless they are there")
    hold = verbs.add_parser("hold", help="keep a cluster until the input ends")
    hold.add_argument("directory", type=Path, nargs="?")
    hold.add_argument("--nodes", type=int, default=2)
    given = parser.parse_args()
    if given.verb == "build":
        _say(str(build.programs()))
    else:
        _hold(given.directory, given.nodes)


if __name__ == "__main__":
    main()
