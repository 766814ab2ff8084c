"""Whom a command trusts when it calls by TLS, although it did not read that when it began."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from agentsvc.cli import certificates
from tests.live.tls import make_certificates

PROGRAM: Final = """
import asyncio, os, sys
from agentsvc.cli import cli

assert cli.get_command(None, "serve")
os.environ["SSL_CERT_FILE"] = sys.argv[2]
import aiohttp

async def main():
    async with aiohttp.ClientSession() as session:
        for _ in range(2):
            try:
                async with session.get(sys.argv[1]) as response:
                    print(response.status)
            except aiohttp.ClientConnectorCertificateError:
                print("not trusted")

asyncio.run(main())
"""
"""Only when the server has been imported is it said whom to trust."""


@pytest.fixture(name="made")
def make(tmp_path: Path) -> Path:
    return make_certificates(tmp_path)[0]


@pytest.mark.parametrize(
    ("trusted", "said"), [("ca.pem", ["200", "200"]), ("none", ["not trusted", "not trusted"])]
)
async def test_a_command_trusts_whom_the_machine_trusts_when_it_calls(
    made: Path, trusted: str, said: list[str]
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=_of_server(made))
        await site.start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}/"
        assert await asyncio.to_thread(_run, url, made / trusted) == said
    finally:
        await runner.cleanup()


def test_a_context_reads_the_certificates_when_it_is_first_used(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(made / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(made / "none"))
    with certificates.unread():
        context = ssl.create_default_context()
    assert context.cert_store_stats()["x509_ca"] == 0
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="there")
    assert context.cert_store_stats()["x509_ca"] == 1


def test_a_socket_is_wrapped_in_the_block_already(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(made / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(made / "none"))
    with certificates.unread(), socket.socket() as plain:
        context = ssl.create_default_context()
        with context.wrap_socket(plain, server_hostname="there"):
            assert context.cert_store_stats()["x509_ca"] == 1


def test_a_context_is_made_as_strict_as_ever() -> None:
    with certificates.unread():
        late = ssl.create_default_context()
    early = ssl.create_default_context()
    for kind in ("check_hostname", "verify_mode", "verify_flags", "minimum_version", "options"):
        assert getattr(late, kind) == getattr(early, kind), kind


def _of_server(made: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "cert.pem", made / "key.pem")
    return context


def _run(url: str, trusted: Path) -> list[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    env |= {
        "SSL_CERT_FILE": str(trusted.parent / "none"),
        "SSL_CERT_DIR": str(trusted.parent / "none"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, str(trusted)],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return done.stdout.split("\n")[:-1]
