"""Fixtures of what is tested on a real Kubernetes: `poe live-kubernetes` says which one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentsvc.values import new_id
from tests.live.kube.cluster import Cluster

VARIABLE = "TEST_KUBERNETES"
"""The directory of a cluster that runs; without it nothing here is collected."""

collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster(Path(os.environ[VARIABLE]))


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """Return a namespace of the test's own."""
    name = f"tests-{new_id()[:12]}"
    cluster.admin.create("/api/v1/namespaces", {"metadata": {"name": name}})
    yield name
    cluster.admin.delete(f"/api/v1/namespaces/{name}")
