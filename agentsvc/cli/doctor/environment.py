"""Checks of the environment: proxies, certificate authorities, models and the clock."""

import asyncio
import base64
import http.client
import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import proxy_bypass

from agentsvc.accounts import KeyRing
from agentsvc.base import AgentsvcError, StartFailed, now
from agentsvc.cli.doctor.finding import Finding, bad, fine, note
from agentsvc.config import Config, DataDirectory
from agentsvc.models import host_of
from agentsvc.settings import SettingsStore
from agentsvc.storage import Installation

_PROXIES: Final = (
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
)
_AUTHORITIES: Final = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
)
_ANSWER_SECONDS: Final = 5.0
_SKEW: Final = timedelta(minutes=1)
_HTTP_PORTS: Final = (80, 11434)


def check_proxies(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that the proxies in the environment respond, and that NO_PROXY excludes this machine."""
    named = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    if not named:
        yield fine("proxies", "none in the environment")
        return
    for name, url in named.items():
        yield _check_proxy(name, url)
    direct = os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""
    hosts = {host.strip() for host in direct.split(",")}
    if hosts.isdisjoint({"127.0.0.1", "localhost", "*"}):
        remedy = f"export NO_PROXY=localhost,127.0.0.1{',' if direct else ''}{direct}"
        yield bad("NO_PROXY", "requests to this machine would go to the proxy", remedy)
    else:
        yield fine("NO_PROXY", direct)


def check_authorities(_config: Config, _data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that the certificate authorities in the environment can be loaded."""
    named = {name: os.environ[name] for name in _AUTHORITIES if os.environ.get(name)}
    if not named:
        yield fine("certificate authorities", "those of the system")
    for name, file in named.items():
        try:
            context = ssl.create_default_context(cafile=file)
            count = context.cert_store_stats()["x509_ca"]
        except OSError as exc:
            text = f"{file} cannot be loaded: {exc.strerror or exc}"
            yield bad(name, text, f"unset {name}, or set it to a file of PEM certificates")
        else:
            yield fine(name, f"{file}, {count} authorities")
    directory = os.environ.get("SSL_CERT_DIR", "")
    if directory and not all(Path(one).is_dir() for one in directory.split(":")):
        yield bad("SSL_CERT_DIR", f"{directory} does not exist", "unset SSL_CERT_DIR")


def check_models(_config: Config, data_directory: DataDirectory) -> Iterator[Finding]:
    """Check that the models of all users can be reached, and compare the clock with theirs."""
    try:
        hosts = (
            asyncio.run(_model_hosts(data_directory)) if data_directory.database.exists() else set()
        )
    except StartFailed as exc:
        yield bad("database", exc.message, exc.hint)
        return
    except AgentsvcError as exc:
        yield bad("database", exc.message, "agentsvc db check")
        return
    if url := os.environ.get("LLM_BASE_URL"):
        hosts.add(host_of("", url))
    hosts.discard("")
    if not hosts:
        remedy = "agentsvc settings set llm_model anthropic/claude-sonnet-4-5"
        yield note("model", "no user has configured one with a known address", remedy)
    found = [finding for host in sorted(hosts) for finding in _check_model(host)]
    yield from found
    if not any(finding.name == "clock" for finding in found):
        text = "no model host has sent its time, so the clock was not compared"
        yield note("clock", text, "timedatectl")


def _parts_of(proxy: str) -> tuple[str, int, dict[str, str]]:
    """Return host and port of a proxy, and its authentication headers."""
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    login = unquote(f"{parts.username or ''}:{parts.password or ''}")
    basic = base64.b64encode(login.encode()).decode()
    headers = {"Proxy-Authorization": f"Basic {basic}"} if parts.username else {}
    return parts.hostname or "", parts.port or 8080, headers


def _check_proxy(name: str, url: str) -> Finding:
    try:
        host, port, _ = _parts_of(url)
        with closing(socket.create_connection((host, port), timeout=_ANSWER_SECONDS)):
            return fine(name, f"{host}:{port} responds")
    except (OSError, ValueError) as exc:
        return bad(name, f"the proxy does not respond: {exc}", f"fix the proxy, or unset {name}")


async def _model_hosts(data_directory: DataDirectory) -> set[str]:
    async with await Installation.open(data_directory) as installation:
        keys = KeyRing(installation.database)
        store = SettingsStore(installation.database, installation.vault)
        users = [await keys.find_user(name) for name in await keys.list_users()]
        found = [await store.find(user_id) for user_id in users if user_id]
        return {host_of(one.llm_model or "", one.llm_base_url) for one in found if one}


def _check_model(address: str) -> Iterator[Finding]:
    host, _, port = address.rpartition(":")
    try:
        date = _ask_time(host.strip("[]"), int(port))
    except ssl.SSLCertVerificationError as exc:
        text = f"the certificate of {address} is not trusted: {exc.verify_message}"
        yield bad(
            "model", text, "export SSL_CERT_FILE=FILE, a file with the authority of your network"
        )
    except (OSError, ValueError, http.client.HTTPException) as exc:
        look = "check the base URL with `agentsvc settings get llm_base_url`"
        yield bad("model", f"{address} cannot be reached: {exc}", f"{look}, or: curl -v {host}")
    else:
        yield fine("model", f"{address} responds")
        yield from _compare_clocks(address, date)


def _ask_time(host: str, port: int) -> str:
    """Return the Date header of a server's response, whatever its status."""
    proxy = next((os.environ[name] for name in _PROXIES if os.environ.get(name)), "")
    is_plain = port in _HTTP_PORTS or host == "localhost" or host.startswith("127.")
    connection: http.client.HTTPConnection
    if is_plain:
        connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)
    elif proxy and not proxy_bypass(host):
        through, at, headers = _parts_of(proxy)
        connection = http.client.HTTPSConnection(through, at, timeout=_ANSWER_SECONDS)
        connection.set_tunnel(host, port, headers)
    else:
        connection = http.client.HTTPSConnection(host, port, timeout=_ANSWER_SECONDS)
    with closing(connection):
        connection.request("HEAD", "/")
        return connection.getresponse().getheader("Date", "")


def _compare_clocks(address: str, date: str) -> Iterator[Finding]:
    try:
        skew = abs(parsedate_to_datetime(date) - now())
    except (TypeError, ValueError):
        return
    if skew > _SKEW:
        text = f"it differs from the clock of {address} by {skew.total_seconds():.0f} s"
        yield bad("clock", text, "timedatectl set-ntp true")
    else:
        yield fine("clock", f"agrees with {address}")
