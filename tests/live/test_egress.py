"""The internet from inside a sandbox: a listed host with real programs, and one that is not."""

import asyncio
import shutil
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from agentsvc.backend import BackendContext, Handle, Network, Order
from agentsvc.backends.process import ProcessBackend, ProcessConfig
from agentsvc.egress.addresses import is_public
from agentsvc.values import new_id
from tests.live.conftest import unavailable

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

LISTED = "pypi.org"
CURL = ("curl", "-sS", "-m", "40", "-o", "/dev/null", "-w", "%{http_code}")
FETCH = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1], timeout=40).status)"


async def run(backend: ProcessBackend, handle: Handle, *argv: str) -> tuple[int | None, str]:
    result = await backend.execute(handle, argv, env={}, time_limit=60, max_output=10_000)
    return result.exit_code, (result.stdout + result.stderr).decode()


async def save(_handle: Handle) -> None:
    """Keep nothing."""


async def test_curl_and_python_reach_a_listed_host_and_no_other(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None or shutil.which("curl") is None:
        unavailable("`bwrap` or `curl` is missing: install `bubblewrap` and `curl`")
    try:
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(LISTED, 443)
        writer.transport.abort()
    except OSError:
        pytest.skip(f"{LISTED} cannot be reached from this machine")
    # Behind a mirror of the internet a public name may lead to an address that is none of it.
    found = await asyncio.get_running_loop().getaddrinfo(LISTED, 443, type=socket.SOCK_STREAM)
    inner = [at for item in found if not is_public(ip_address(at := str(item[4][0])))]
    context = BackendContext(instance_id=new_id(), state_dir=tmp_path / "state")
    backend = ProcessBackend(ProcessConfig(use_bubblewrap=True), context)
    await backend.open()
    order = Order(
        sandbox_id=new_id(),
        command=("sleep", "600"),
        network=Network.ALLOWLIST,
        allow_hosts=(LISTED, *inner),
    )
    handle = await backend.create(order, save)
    try:
        assert await run(backend, handle, *CURL, f"https://{LISTED}/") == (0, "200")
        assert await run(backend, handle, "python3", "-c", FETCH, f"https://{LISTED}/") == (
            0,
            "200\n",
        )
        code, said = await run(backend, handle, *CURL, "https://example.org/")
        assert code != 0
        assert "403" in said
        assert await run(backend, handle, *CURL, "http://example.org/") == (0, "403")
        code, said = await run(backend, handle, "python3", "-c", FETCH, "https://example.org/")
        assert code != 0
        assert "403 Forbidden by allow_hosts" in said
        # Without the proxy there is no way, and no name.
        code, _ = await run(backend, handle, *CURL, "--noproxy", "*", f"https://{LISTED}/")
        assert code == 6
        code, _ = await run(backend, handle, *CURL, "--noproxy", "*", "http://1.1.1.1/")
        assert code == 7
    finally:
        await backend.delete(handle)
        await backend.close()
