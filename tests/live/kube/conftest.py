"""Fixtures of what is tested on a real Kubernetes: `poe live-kubernetes` says which one."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from agentsvc.testing.llm import ScriptedModel
from tests.live import engines
from tests.live.containers import EVERYWHERE
from tests.live.installation import Installation, secret
from tests.live.kube import manifests
from tests.live.kube.cluster import VARIABLE, Cluster
from tests.live.scripts import SCRIPTS

START_SECONDS = 240.0
_LOG_LINES = 80

# An ordinary run has no cluster.
collect_ignore_glob = [] if VARIABLE in os.environ else ["test_*.py"]

type Start = Callable[..., Awaitable[Installation]]


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """Return the cluster, with what has to be there before a server comes."""
    found = Cluster(Path(os.environ[VARIABLE]))
    manifests.apply(found.admin, manifests.read("1-namespaces", "2-access", "3-network"))
    return found


@pytest.fixture(scope="session")
def token(cluster: Cluster) -> str:
    """Return the token of the server's own service account."""
    return manifests.token_of(cluster)


@pytest.fixture(scope="session")
def kubeconfig(cluster: Cluster, token: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file with which a server on this machine is that account."""
    return manifests.kubeconfig(cluster, token, tmp_path_factory.mktemp("access"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def near_model(cluster: Cluster) -> AsyncIterator[ScriptedModel]:
    """Return a model where pods find this machine."""
    address = cluster.plan.machine
    async with ScriptedModel(scripts=SCRIPTS, key=secret("model"), host=address) as model:
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def start(
    tmp_path_factory: pytest.TempPathFactory,
    cluster: Cluster,
    kubeconfig: Path,
    near_model: ScriptedModel,
) -> AsyncIterator[Start]:
    """Return a function that starts a server whose sandboxes are pods."""
    made: list[Installation] = []

    async def make(**environment: str) -> Installation:
        port = _free_port()
        told = {
            "AGENTSVC_SERVER__HOST": EVERYWHERE,
            "AGENTSVC_SANDBOXES__MODEL_HOSTS": json.dumps([urlsplit(near_model.url).netloc]),
            "AGENTSVC_SANDBOXES__DEFAULT_BACKEND": "kubernetes",
            "AGENTSVC_SANDBOXES__SWEEP_SECONDS": "1",
            "AGENTSVC_SANDBOXES__START_SECONDS": str(START_SECONDS),
            **_backend(cluster, kubeconfig, port),
            **_plain_spec(),
            **environment,
        }
        directory = tmp_path_factory.mktemp("pods")
        installation = Installation(directory, near_model, told)
        installation.url = f"http://127.0.0.1:{port}"
        made.append(installation)
        await installation.start()
        await installation.client().save_settings()
        return installation

    yield make
    for installation in made:
        lines = [line for line in installation.log.splitlines() if " method=GET " not in line]
        sys.stderr.write("\n".join(["--- the server's log", *lines[-_LOG_LINES:], ""]))
        await installation.close()
        found = await asyncio.to_thread(manifests.left, cluster, installation.instance_id)
        assert found == [], f"the cluster still has {found}"


def _backend(cluster: Cluster, kubeconfig: Path, port: int) -> dict[str, str]:
    table = {
        "CALLBACK": f"http://{cluster.plan.machine}:{port}",
        "KUBECONFIG": str(kubeconfig),
        "NAMESPACE": manifests.SANDBOXES,
        "REACH": "pod",
        "SERVER_CIDRS": json.dumps([cluster.plan.all_addresses]),
        "SERVICE_ACCOUNT": "sandbox",
        "STORAGE_SIZE": "100Mi",
    }
    return {f"AGENTSVC_BACKENDS__KUBERNETES__{key}": text for key, text in table.items()}


def _plain_spec() -> dict[str, str]:
    """Return a spec that shows its files to whoever asks, and is up in a moment."""
    serve = ["python3", "-m", "http.server", "{port.agent}", "--directory", "/workspace"]
    table = {
        "BACKEND": "kubernetes",
        "IMAGE": engines.BASE,
        "COMMAND": json.dumps(serve),
        "PORTS": json.dumps([{"name": "agent", "number": 8000}]),
    }
    return {
        **{f"AGENTSVC_SPECS__PLAIN__{key}": text for key, text in table.items()},
        "AGENTSVC_SANDBOXES__DEFAULT_SPEC": "plain",
    }


def _free_port() -> int:
    """Return a port that pods can be told of before the server listens there."""
    with socket.create_server(("", 0)) as trial:
        return int(trial.getsockname()[1])
