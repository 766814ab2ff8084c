"""Fixtures of the tests with published clients: each is installed once in a run of the tests."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.live.clients.published import Client, NotInstalled, install_node, install_python
from tests.live.conftest import unavailable

type Record = Callable[[str, object], None]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which all processes of this run of the tests install clients."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "clients"


@pytest.fixture
def python_sdk(workshop: Path, record_property: Record) -> Client:
    return _installed(
        record_property,
        lambda: install_python(workshop / "sdk", "openhands-sdk", "openhands-workspace"),
    )


@pytest.fixture
def older_sdks(workshop: Path, record_property: Record) -> dict[str, Client]:
    """Return versions of the SDK: that of the command line, and two that read more of events."""

    def install(version: str) -> Client:
        packages = (f"openhands-sdk=={version}", f"openhands-tools=={version}", "bashlex")
        return install_python(workshop / f"sdk-{version}", *packages, with_needed=False)

    with ThreadPoolExecutor() as pool:
        installed = {
            version: pool.submit(install, version) for version in ("1.21.0", "1.30.0", "1.53.0")
        }
    return {
        version: _installed(record_property, made.result) for version, made in installed.items()
    }


@pytest.fixture
def agent_sandbox_sdk(workshop: Path, record_property: Record) -> Client:
    """Return the SDK's workspaces with the client of agent-sandbox, and what that needs."""
    packages = ("openhands-workspace", "k8s-agent-sandbox", "kubernetes", "prometheus-client")
    needed = ("durationpy", "oauthlib", "requests-oauthlib", "websocket-client")
    return _installed(
        record_property,
        lambda: install_python(workshop / "agent_sandbox", *packages, *needed, with_needed=False),
    )


@pytest.fixture
def python_socketio(workshop: Path, record_property: Record) -> Client:
    return _installed(
        record_property, lambda: install_python(workshop / "socketio", "python-socketio", "aiohttp")
    )


@pytest.fixture
def schemathesis(workshop: Path, record_property: Record) -> Client:
    return _installed(
        record_property, lambda: install_python(workshop / "schemathesis", "schemathesis")
    )


@pytest.fixture
def command_line(workshop: Path, record_property: Record) -> Client:
    return _installed(
        record_property, lambda: install_python(workshop / "command_line", "openhands>=1")
    )


@pytest.fixture
def automation_service(workshop: Path, record_property: Record) -> Client:
    # The second one is no client: its runs install what they need with it.
    packages = ("openhands-automation==1.26.0", "uv")
    return _installed(record_property, lambda: install_python(workshop / "automation", *packages))


@pytest.fixture
def benchmarks(workshop: Path, record_property: Record) -> Client:
    """Return the SDK with what a harness that is no package needs besides it."""
    packages = ("openhands-sdk", "openhands-workspace")
    needed = ("datasets", "jinja2", "lmnr", "pandas", "requests", "tqdm")
    return _installed(
        record_property, lambda: install_python(workshop / "benchmarks", *packages, *needed)
    )


@pytest.fixture
def javascript(workshop: Path, record_property: Record) -> Client:
    # The last one is no client: it takes the types out of programs.
    packages = ("@openhands/typescript-client", "socket.io-client", "sucrase")
    return _installed(record_property, lambda: install_node(workshop / "node", *packages))


@pytest.fixture
def protocols(workshop: Path, record_property: Record) -> Client:
    """Return the TypeScript clients of MCP and ACP; the last one is a WebSocket for the second."""
    packages = ("@modelcontextprotocol/sdk", "@agentclientprotocol/sdk", "ws")
    return _installed(record_property, lambda: install_node(workshop / "protocols", *packages))


@pytest.fixture
def oidc_provider(workshop: Path, record_property: Record) -> Client:
    return _installed(
        record_property, lambda: install_node(workshop / "oidc", "oidc-provider@9.13.3")
    )


@pytest.fixture
def other_agents(workshop: Path, record_property: Record) -> Client:
    """Return two agents that speak the Agent Client Protocol, each the newest that runs everywhere.

    Newer ones of the first want a newer Node.js. The second is the program for this machine alone.
    """
    machine = {"aarch64": "arm64"}.get(os.uname().machine, "x64-baseline")
    packages = ("@qwen-code/qwen-code@0.15.10", f"opencode-linux-{machine}@1.18.33")
    return _installed(record_property, lambda: install_node(workshop / "agents", *packages))


def _installed(record: Record, install: Callable[[], Client]) -> Client:
    try:
        client = install()
    except NotInstalled as exc:
        unavailable(str(exc))
    record("client", client.versions)
    return client
