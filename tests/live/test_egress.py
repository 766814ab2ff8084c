"""The internet from inside a sandbox: a listed host with real programs, and one that is not."""

import asyncio
import shutil
import socket
from ipaddress import ip_address
from pathlib import Path

import pytest
from process import launch, uplink
from process.backend import ProcessBackend
from process.settings import ProcessConfig

from agentsvc.base.values import new_id
from agentsvc.plugin.backend import BackendContext, Handle, Network, Order
from agentsvc.plugin.egress.addresses import is_public
from tests.live.conftest import unavailable

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

LISTED = "pypi.org"
URL = f"https://{LISTED}/"
CURL = ("curl", "-sS", "-m", "40", "-o", "/dev/null", "-w", "%{http_code}")
FETCH = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1], timeout=40).status)"
PYTHON = ("python3", "-c", FETCH)
OUTSIDE = {"PATH": launch.search_path(""), "LANG": "C.UTF-8"}
"""As little as a sandbox knows: no proxy of this machine's, and no authorities but the system's."""


async def run(backend: ProcessBackend, handle: Handle, *argv: str) -> tuple[int | None, str]:
    result = await backend.execute(handle, argv, env={}, time_limit=60, max_output=10_000)
    return result.exit_code, (result.stdout + result.stderr).decode()


async def run_outside(*argv: str) -> str:
    """Return what the same program says on this machine, with none of our proxies before it."""
    process = await asyncio.create_subprocess_exec(
        *argv, env=OUTSIDE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return said.decode(errors="replace").strip()


async def skip_without_a_way_out() -> None:
    """Skip where this machine itself does not get the listed host's page by both programs."""
    for argv in (CURL, PYTHON):
        said = await run_outside(*argv, URL)
        if said != "200":
            pytest.skip(f"{argv[0]} on this machine does not get {URL}: {said[-300:]}")


async def save(_handle: Handle) -> None:
    """Keep nothing."""


async def test_curl_and_python_reach_a_listed_host_and_no_other(tmp_path: Path) -> None:
    path = launch.search_path("")
    if None in [shutil.which(name, path=path) for name in ("bwrap", "curl", "python3")]:
        unavailable(
            "`bwrap`, `curl` or `python3` is missing: install `bubblewrap`, `curl` and `python3`"
        )
    await skip_without_a_way_out()
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
        reached = [await run(backend, handle, *argv, URL) for argv in (CURL, PYTHON)]
        if reached != [(0, "200"), (0, "200\n")]:
            # It may be the way out itself that has broken meanwhile.
            await skip_without_a_way_out()
        assert reached == [(0, "200"), (0, "200\n")]
        code, said = await run(backend, handle, *CURL, "https://example.org/")
        assert code != 0
        assert "403" in said
        assert await run(backend, handle, *CURL, "http://example.org/") == (0, "403")
        code, said = await run(backend, handle, *PYTHON, "https://example.org/")
        assert code != 0
        assert "403 Forbidden by allow_hosts" in said
        # Without the proxy there is no way, and no name.
        code, _ = await run(backend, handle, *CURL, "--noproxy", "*", URL)
        assert code == 6
        code, _ = await run(backend, handle, *CURL, "--noproxy", "*", "http://1.1.1.1/")
        assert code == 7
        if not uplink.why_not():
            own = await backend.create(Order(sandbox_id=new_id(), command=("sleep", "600")), save)
            try:
                assert [await run(backend, own, *argv, URL) for argv in (CURL, PYTHON)] == reached
            finally:
                await backend.delete(own)
    finally:
        await backend.delete(handle)
        await backend.close()
