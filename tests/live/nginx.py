"""A real nginx with TLS in front of a server, as a process of the test's own."""

import asyncio
import datetime
import ipaddress
import shutil
import socket
import ssl
import tomllib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from agentsvc.base.values import now
from tests.docs.pages import blocks_of

_FRAME = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {body}
}}
"""
_TO_SERVER = """
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/cert.pem;
        ssl_certificate_key {folder}/key.pem;
        {location}
    }}
"""
_LOCATION = """
        location {path}/ {{
            proxy_pass {upstream};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
            {headers}
            proxy_buffering off;
            proxy_request_buffering off;
            proxy_read_timeout 1d;
            client_max_body_size 0;
        }}
"""
_FORWARDED = """
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-Prefix "{path}";
"""


def program() -> str | None:
    """Return where nginx is, if it is installed."""
    return shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


def trust(folder: Path) -> ssl.SSLContext:
    """Return what a client needs to trust the nginx of a folder."""
    return ssl.create_default_context(cafile=str(folder / "cert.pem"))


@asynccontextmanager
async def running(
    folder: Path, *, port: int, path: str, server_url: str, strips: bool, domain: str = ""
) -> AsyncIterator[None]:
    """Run nginx on a port with TLS; below a path is the server.

    One that strips the path says so in headers; one that keeps it says nothing. Its certificate is
    for the names below a domain, too.
    """
    write_certificate(folder, domain)
    headers = _FORWARDED.format(path=path) if strips else ""
    upstream = f"{server_url}/" if strips else server_url
    location = _LOCATION.format(path=path, upstream=upstream, headers=headers)
    async with serving(
        folder, port, _TO_SERVER.format(folder=folder, port=port, location=location)
    ):
        yield


@asynccontextmanager
async def as_the_guide_says(folder: Path, *, port: int, server_url: str) -> AsyncIterator[None]:
    """Run nginx on a port with TLS, with the location that the page on proxies has."""
    write_certificate(folder, "")
    [location] = [block.code for block in blocks_of("how-to/proxy") if block.kind == "nginx"]
    location = location.replace("http://127.0.0.1:3000", server_url)
    async with serving(
        folder, port, _TO_SERVER.format(folder=folder, port=port, location=location)
    ):
        yield


def section_of_the_guide(public_url: str) -> dict[str, Any]:
    """Return what the page on proxies has in `[server]` for that, with a URL for its example."""
    code = [block.code for block in blocks_of("how-to/proxy") if block.kind == "toml"]
    [section] = [section for one in code if (section := tomllib.loads(one).get("server"))]
    given = {"public_url": public_url} if "public_url" in section else {}
    return {**section, **given, "trusted_proxies": tuple(section["trusted_proxies"])}


@asynccontextmanager
async def serving(folder: Path, port: int, body: str) -> AsyncIterator[None]:
    """Run nginx in a folder, with what stands in its `http` block, while this lasts."""
    config = folder / "nginx.conf"
    config.write_text(_FRAME.format(folder=folder, body=body))
    command = (program() or "nginx", "-p", str(folder), "-c", str(config))
    async with listening(command, port, folder):
        yield


@asynccontextmanager
async def listening(
    command: Sequence[str], port: int, folder: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    """Run a proxy while this lasts, from when it listens; what it says is in `output.log`."""
    log = (folder / "output.log").open("wb")
    process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log, env=env)
    try:
        await wait_until_it_listens(process, port, folder)
        yield
    finally:
        log.close()
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def wait_until_it_listens(
    process: asyncio.subprocess.Process, port: int, folder: Path
) -> None:
    """Wait until a process takes connections at a port; fails with what it wrote if it ends."""
    async with asyncio.timeout(30):
        while True:
            if process.returncode is not None:
                raise AssertionError((folder / "output.log").read_text())
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def write_certificate(folder: Path, domain: str) -> None:
    """Write a certificate and its key for this machine, and for the names below a domain."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    moment = now()
    names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    if domain:
        names.append(x509.DNSName(f"*.{domain}"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - datetime.timedelta(days=1))
        .not_valid_after(moment + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
