"""Fixtures of the live tests: servers as processes, real agent servers, a model that plays scripts.

All of it lives on one event loop for the whole run, so that a server, a model and one sandbox can
serve many tests. Tests that end a server, or count on nobody else using it, take their own.
"""

import contextlib
import importlib.metadata
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import NoReturn

import pytest
import pytest_asyncio

from agentsvc.models.hosts import host_of_url
from agentsvc.testing.llm import ScriptedModel
from tests.git_hosts import GitHosts
from tests.git_server import GitServer
from tests.live import rootless
from tests.live.client import PATIENCE, LiveClient
from tests.live.containers import Engine, our_engine, our_podman, without_root
from tests.live.engines import EngineFailed
from tests.live.installation import Installation, secret
from tests.live.scripts import SCRIPTS

_LOG_LINES = 60

type MakeInstallation = Callable[..., Awaitable[Installation]]

FORKS = {
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "true",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_DELAY_SECONDS": "60",
    "AGENTSVC_BACKENDS__PROCESS__ZYGOTE_SECONDS": "80",
}
"""Has agent servers be forks of one, which takes less than a plain start, however few there are."""

PLAIN = {"AGENTSVC_BACKENDS__PROCESS__ZYGOTE": "false"}


def unavailable(text: str) -> NoReturn:
    """Skip a test that lacks what it needs; in CI that fails."""
    if os.environ.get("CI"):
        pytest.fail(text)
    pytest.skip(text)


@pytest.fixture(scope="session", autouse=True)
def agent_server_installed() -> None:
    """Skip what needs the real agent server where there is none; in CI that fails."""
    try:
        importlib.metadata.version("openhands-agent-server")
    except importlib.metadata.PackageNotFoundError:
        unavailable("the extra `agent` is not installed")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel(scripts=SCRIPTS, key=secret("model")) as model:
        yield model


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def git_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GitServer]:
    async with GitServer(tmp_path_factory.mktemp("git"), secret("git")) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def git_hosts() -> AsyncIterator[GitHosts]:
    async with GitHosts() as hosts:
        yield hosts


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return a Docker engine with our image, the same one for all workers of this run."""
    base = tmp_path_factory.getbasetemp()
    try:
        with our_engine(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) as engine:
            yield engine
    except EngineFailed as exc:
        unavailable(str(exc))


@pytest.fixture(scope="session")
def podman(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[Engine]:
    """Return Podman with the Docker engine's base image, the same one for all workers."""
    base = tmp_path_factory.getbasetemp()
    try:
        with our_podman(
            base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, engine
        ) as found:
            yield found
    except EngineFailed as exc:
        unavailable(str(exc))


@pytest.fixture(scope="session")
def rootless_docker(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """Return Docker without root, with a base image, the same one for all workers."""
    yield from _rootless("docker", tmp_path_factory, request)


@pytest.fixture(scope="session")
def rootless_podman(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    """Return Podman without root, with a base image, the same one for all workers."""
    yield from _rootless("podman", tmp_path_factory, request)


def _rootless(
    kind: str, factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Engine]:
    if reason := rootless.why_not(kind):
        pytest.skip(reason)
    engine = request.getfixturevalue("engine")
    base = factory.getbasetemp()
    try:
        with without_root(
            base.parent if "PYTEST_XDIST_WORKER" in os.environ else base, kind, engine
        ) as found:
            yield found
    except EngineFailed as exc:
        unavailable(str(exc))


@pytest.fixture(scope="session")
def gvisor(engine: Engine) -> Engine:
    """Return the Docker engine, which has gVisor."""
    if reason := engine.why_no_gvisor():
        pytest.skip(reason)
    return engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared(
    tmp_path_factory: pytest.TempPathFactory,
    model: ScriptedModel,
    git_server: GitServer,
    git_hosts: GitHosts,
) -> AsyncIterator[Installation]:
    """Return a server that is not to be stopped."""
    environment = {
        "CANARY": "sings",
        "AGENTSVC_SERVER__DEVICE_LOGIN": "true",
        "AGENTSVC_SHARING__ENABLED": "true",
        **FORKS,
        "AGENTSVC_SANDBOXES__CALL_SECONDS": "100",
        # Whoever has waited so long starts plainly, which takes its time, too.
        "AGENTSVC_SANDBOXES__START_SECONDS": str(2 * PATIENCE),
        "AGENTSVC_SANDBOXES__MODEL_HOSTS": json.dumps([host_of_url(model.url)]),
        "AGENTSVC_GIT__PRIVATE_HOSTS": json.dumps([git_server.host, host_of_url(git_hosts.url)]),
        # The first request of an agent server waits for much to be loaded, on a busy machine long.
        "AGENTSVC_CONVERSATIONS__FIRST_ANSWER_SECONDS": "30",
    }
    installation = Installation(tmp_path_factory.mktemp("shared"), model, environment)
    await installation.start()
    yield installation
    await _close(installation)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def sandbox_id(shared: Installation) -> str:
    """Return a running sandbox of the shared server, for any number of conversations."""
    client = shared.client()
    answer = await client.post("/api/v1/sandboxes")
    found: str = answer.json()["id"]
    # It may be the first of all, which takes longest.
    await client.wait_for_sandbox(found, "RUNNING", time_limit=2 * PATIENCE)
    return found


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared: Installation) -> LiveClient:
    """Return a client of the shared server, whose settings are as if nothing had been changed."""
    client = shared.client()
    await client.save_settings()
    return client


@pytest_asyncio.fixture(loop_scope="session")
async def make_installation(
    tmp_path_factory: pytest.TempPathFactory, model: ScriptedModel, git_server: GitServer
) -> AsyncIterator[MakeInstallation]:
    """Return a function that starts a server of the test's own."""
    usual = {**FORKS, "AGENTSVC_GIT__PRIVATE_HOSTS": json.dumps([git_server.host])}
    # None is left to the other tests because another one could not be closed.
    async with contextlib.AsyncExitStack() as made:

        async def make(**environment: str) -> Installation:
            environment = usual | environment
            installation = Installation(tmp_path_factory.mktemp("own"), model, environment)
            made.push_async_callback(_close, installation)
            await installation.start()
            await installation.client().save_settings()
            return installation

        yield make


@pytest_asyncio.fixture(loop_scope="session")
async def own(make_installation: MakeInstallation) -> Installation:
    """Return a server of the test's own."""
    return await make_installation()


async def _close(installation: Installation) -> None:
    try:
        await installation.close()
    finally:
        lines = [one for one in installation.log.splitlines() if " request method=GET " not in one]
        sys.stderr.write("\n".join(["--- the server's log", *lines[-_LOG_LINES:], ""]))
