"""A real Caddy with TLS in front of a server, set up as `agentsvc deploy show Caddyfile` says."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import agentsvc
from tests.live import nginx

EXAMPLE = Path(agentsvc.__file__).parent / "deploy" / "Caddyfile"
_SITE = "agents.example.org {\n"
_SERVER = "127.0.0.1:3000"
# What belongs to a test alone: nothing listens at other ports, and nothing is kept.
_GLOBAL = (
    "{{\n\tadmin off\n\tauto_https disable_redirects\n\tstorage file_system {folder}/caddy\n}}\n"
)


def program() -> str | None:
    """Return where Caddy is, if it is installed."""
    return shutil.which("caddy", path="/usr/bin:/usr/local/bin")


def site(path: str) -> str:
    """Return the part of the example for the root of a host, or for a path on it."""
    parts = EXAMPLE.read_text().split("\n\n")
    if not path:
        [found] = [part for part in parts if _SITE in part and "handle_path" not in part]
        return found
    [found] = [part for part in parts if "handle_path" in part]
    lines = [line.removeprefix("#") for line in found.splitlines() if not line.startswith("# ")]
    return "\n".join(lines).replace("/agents", path)


@asynccontextmanager
async def running(folder: Path, *, port: int, path: str, server_url: str) -> AsyncIterator[None]:
    """Run Caddy on a port with TLS; the server is at the root, or below a path that it strips."""
    nginx.write_certificate(folder, "")
    text = site(path)
    assert _SITE in text
    assert _SERVER in text
    tls = f"https://127.0.0.1:{port} {{\n\ttls {folder}/cert.pem {folder}/key.pem\n"
    text = text.replace(_SITE, tls).replace(_SERVER, server_url.removeprefix("http://"))
    config = folder / "Caddyfile"
    config.write_text(_GLOBAL.format(folder=folder) + text + "\n")
    command = (program() or "caddy", "run", "--adapter", "caddyfile", "--config", str(config))
    env = {"HOME": str(folder), "PATH": "/usr/bin"}
    async with nginx.listening(command, port, folder, env):
        yield
