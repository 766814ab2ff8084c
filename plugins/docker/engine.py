"""Client for the API of one engine: requests, streams and the engine's features.

Error responses are translated to domain errors here, unless the caller expects their status.
"""

import asyncio
import base64
import contextlib
import ipaddress
import json
import re
import socket
import ssl
import struct
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from agentsvc.base import AgentsvcError, BackendUnavailable
from agentsvc.plugin import finish
from agentsvc.plugin.egress.addresses import is_own

from .failures import CONFLICT, NOT_FOUND, from_engine, one_line
from .settings import Host, address_of, resolve_tls_dir, resolve_url
from .tunnel import Tunnel

if TYPE_CHECKING:
    import aiodocker
    import aiohttp

_API_NEWEST: Final = (1, 47)
_BAD: Final = 400
_NOT_MODIFIED: Final = 304
# Podman responds with 500 instead of these codes: for objects removed meanwhile, and for names in
# use.
_PODMAN: Final = {
    NOT_FOUND: re.compile(r"no such (container|network|volume|exec session|object)"),
    CONFLICT: re.compile(r"name .* is already in use"),
}
_PODMAN_WITH_GATEWAY: Final = 5
_LOOPBACK: Final = "127.0.0.1"
_PEER_SECONDS: Final = 1.0
_SAVES: Final = re.compile(r"(^| )--?net-disconnect-ok(=true)?( |$)")
_SAVES_NOT: Final = re.compile(r"(^| )--?network[= ]host( |$)")
_HUB: Final = ("docker.io", "index.docker.io")
"""Registry names that mean Docker Hub; its logins are stored under one name."""

type Json = dict[str, Any]
type Explain = Callable[[int, str], AgentsvcError]


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Version and features of one engine."""

    kind: str
    version: str
    api: str
    runtimes: tuple[str, ...]
    default_runtime: str
    has_init: bool
    has_pids: bool
    has_memory: bool
    has_cpus: bool
    can_freeze: bool
    is_rootless: bool
    has_quota: bool
    has_layers: bool
    """Whether containers share the files of their image, and copy only what they change."""
    cpus: int
    memory_bytes: int
    is_beside: bool
    """Whether containers' own addresses can be reached from here."""
    is_experimental: bool = False
    saving_runtimes: tuple[str, ...] = ()
    """gVisor runtimes whose containers can be checkpointed while they have connections."""

    @property
    def is_podman(self) -> bool:
        """Whether it is Podman."""
        return self.kind == "podman"

    @property
    def knows_its_machine(self) -> bool:
        """Whether its `host-gateway` address leads containers to its machine."""
        if self.is_podman:
            major = self.version.partition(".")[0]
            return major.isdecimal() and int(major) >= _PODMAN_WITH_GATEWAY
        # A rootless engine's `host-gateway` is an address of its own network.
        return not self.is_rootless

    def shown(self) -> dict[str, str]:
        """Return the features for the operator."""
        limits = {"cpus": self.has_cpus, "memory": self.has_memory, "pids": self.has_pids}
        return {
            "engine": f"{self.kind} {self.version}, API {self.api}",
            "runtimes": ", ".join(self.runtimes),
            "limits": ", ".join(name for name, has in limits.items() if has) or "none",
            "can freeze": _yes(self.can_freeze),
            "init": _yes(self.has_init),
            "rootless": _yes(self.is_rootless),
            "disk quota": _yes(self.has_quota),
            "layers": "images"
            if self.has_layers
            else "full copies: the storage driver is not overlay2 or similar",
            "reached by": "container addresses" if self.is_beside else "published ports",
        }


class Engine:
    """A client for one engine; created without I/O, connected by the first request."""

    def __init__(self, host: Host, *, time_limit: float) -> None:
        self.host = host
        self.name = host.name
        self.url = resolve_url(host)
        self._time_limit = time_limit
        self._client: aiodocker.Docker | None = None
        self._tunnel: Tunnel | None = None
        self._facts: EngineInfo | None = None
        self._version: Json | None = None
        self._base = ""
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        tunnel, self._tunnel = self._tunnel, None
        self._facts = None
        if client is not None:
            await client.close()
        if tunnel is not None:
            await tunnel.close()

    @property
    def publish_address(self) -> str:
        """Where ports are published and reached if the containers' addresses are unreachable."""
        return self.host.publish or _LOOPBACK

    @property
    def is_remote(self) -> bool:
        """Whether the engine is on another machine than this server."""
        return address_of(self.url) not in ("", "localhost", _LOOPBACK, "::1")

    async def facts(self, *, fresh: bool = False) -> EngineInfo:
        """Return the engine's features, cached per connection unless `fresh`."""
        if self._facts is None or fresh:
            self._facts = await self._read_info()
        return self._facts

    async def get(self, path: str, **params: Any) -> Any:
        """Return the response to a GET, or None for 404."""
        return await self.ask("GET", path, params=params, expect=(NOT_FOUND,))

    async def listed(self, kind: str, filters: Mapping[str, Any] | None = None) -> list[Json]:
        """Return all `containers`, `networks`, `volumes` or `images` that match the filters."""
        query: Json = {"all": True} if kind == "containers" else {}
        if filters is not None:
            query["filters"] = filters
        path = f"{kind}/json" if kind in ("containers", "images") else kind
        found = await self.ask("GET", path, params=query)
        return (found.get("Volumes") if kind == "volumes" else found) or []

    async def remove(self, path: str, **params: Any) -> None:
        """Delete an object, unless it is gone or in use."""
        await self.ask("DELETE", path, params=params, expect=(NOT_FOUND, CONFLICT))

    async def put(self, container_id: str, path: str, archive: bytes) -> None:
        """Unpack an archive in a directory of a container."""
        to = f"containers/{container_id}/archive"
        await self.ask("PUT", to, params={"path": path}, data=archive)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        data: bytes | None = None,
        expect: Collection[int] = (),
        time_limit: float | None = None,
    ) -> Any:
        """Send one request and return the decoded JSON; None for a status in `expect`.

        Raises BackendUnavailable if the engine does not respond, and a domain error for other
        statuses. If the caller is cancelled, wait for requests that change something, so that
        nothing is created after that.
        """

        async def exchange() -> Any:
            try:
                async with (
                    asyncio.timeout(time_limit or self._time_limit),
                    self.stream(
                        method, path, params=params, body=body, data=data, expect=expect
                    ) as answer,
                ):
                    return None if answer is None else await _read(answer, expect)
            except TimeoutError as exc:
                raise self.away("it did not respond in time") from exc

        if method == "GET":
            return await exchange()
        return await finish(exchange())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: object = None,
        data: bytes | IO[bytes] | AsyncIterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
        expect: Collection[int] = (),
        explain: Explain = from_engine,
    ) -> AsyncIterator["aiohttp.ClientResponse | None"]:
        """Send a request and yield the response for streaming; None for a status in `expect`."""
        import aiohttp  # noqa: PLC0415  # imported only for a configured backend

        session = (await self._connected()).session
        try:
            async with session.request(
                method,
                f"{self._base}/{path}",
                params=_to_params(params or {}),
                json=body,
                data=data,
                headers=headers,
            ) as answer:
                # None tells the caller that there is no body to read.
                yield answer if answer.status < _BAD else await _read(answer, expect, explain)
        except (aiohttp.ClientError, OSError) as exc:
            raise self.away(str(exc) or type(exc).__name__) from exc

    async def _connected(self) -> "aiodocker.Docker":
        async with self._opening:
            if self._client is None or (self._tunnel is not None and self._tunnel.is_down):
                await self.close()
                await self._open()
            assert self._client is not None  # noqa: S101  # set by _open
            return self._client

    async def _open(self) -> None:
        try:
            import aiodocker  # noqa: PLC0415  # imported only for a configured backend
        except ImportError as exc:
            raise BackendUnavailable(
                "The client library of container engines is not installed:"
                " run `pip install agentsvc[docker]`"
            ) from exc
        url, context = self.url, None
        if url.startswith("ssh:"):
            self._tunnel = Tunnel(url)
            url = "unix://" + await self._tunnel.open(self._time_limit)
        elif tls_dir := resolve_tls_dir(self.host):
            context = await asyncio.to_thread(_certificates, tls_dir)
            url = re.sub(r"^\w+:", "https:", url)
        url = re.sub(r"^tcp:", "http:", url)
        client = aiodocker.Docker(url=url, ssl_context=context, api_version="v1.40")
        base = client.docker_host
        try:
            async with (
                asyncio.timeout(self._time_limit),
                client.session.get(f"{base}/version") as answer,
            ):
                version = await answer.json(content_type=None)
                api = tuple(map(int, version["ApiVersion"].split(".")))
                major, minor = min(api, _API_NEWEST)
        except BaseException as exc:
            await client.close()
            if isinstance(exc, Exception):
                raise self.away(str(exc) or type(exc).__name__) from exc
            raise
        self._client, self._version = client, version
        self._base = f"{base}/v{major}.{minor}"

    async def _read_info(self) -> EngineInfo:
        info = await self.ask("GET", "info")
        # Reuse the version from opening the connection: Podman takes a while to return it.
        version, self._version = self._version, None
        version = version or await self.ask("GET", "version")
        bridge = await self.get("networks/bridge") or {}
        is_near = not self.is_remote and not self.host.publish and self._tunnel is None
        is_beside = is_near and _is_beside(info, bridge)
        if is_near and not is_beside and _is_podman(version) and self.url.startswith("unix:"):
            # Podman's bridge exists only while a container is in that network.
            is_beside = await asyncio.to_thread(_shares_network, self.url.removeprefix("unix://"))
        return to_facts(info, version, is_beside=is_beside)

    def away(self, why: str) -> BackendUnavailable:
        """Return the error for an unreachable engine, with the reason."""
        return BackendUnavailable(
            f"The container engine `{self.name}` cannot be reached",
            detail=f"{self.url}: {one_line(why)}",
        )


def to_facts(info: Json, version: Json, *, is_beside: bool) -> EngineInfo:
    """Return the features that follow from the engine's `info` and `version`."""
    kind = "podman" if _is_podman(version) else "docker"
    security = " ".join(info.get("SecurityOptions") or [])
    is_rootless = "rootless" in security or bool(info.get("Rootless"))
    is_old = str(info.get("CgroupVersion", "1")) == "1"
    # Podman reports limits there that it does not enforce.
    is_powerless = is_rootless and (is_old or info.get("CgroupDriver") == "none")
    status = {name: value for name, value, *_ in info.get("DriverStatus") or []}
    has_quota = info.get("Driver") in ("btrfs", "zfs") or (
        status.get("Backing Filesystem") == "xfs" and info.get("Driver") == "overlay2"
    )
    return EngineInfo(
        kind=kind,
        version=version.get("Version", "unknown"),
        api=version.get("ApiVersion", "unknown"),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        default_runtime=info.get("DefaultRuntime") or "",
        has_init=kind == "podman" or bool(info.get("InitBinary")),
        has_pids=bool(info.get("PidsLimit")) and not is_powerless,
        has_memory=bool(info.get("MemoryLimit")) and not is_powerless,
        has_cpus=bool(info.get("CpuCfsQuota") or info.get("CPUCfsQuota")) and not is_powerless,
        can_freeze=not is_powerless,
        is_rootless=is_rootless,
        has_quota=has_quota,
        has_layers=info.get("Driver") != "vfs",
        cpus=int(info.get("NCPU") or 1),
        memory_bytes=int(info.get("MemTotal") or 0),
        is_beside=is_beside and not is_rootless,
        is_experimental=bool(info.get("ExperimentalBuild")),
        saving_runtimes=_saving_runtimes(info.get("Runtimes") or {}),
    )


def _saving_runtimes(runtimes: Json) -> tuple[str, ...]:
    return tuple(
        name
        for name, settings in runtimes.items()
        if _SAVES.search(arguments := " ".join(settings.get("runtimeArgs") or []))
        and not _SAVES_NOT.search(arguments)
    )


def registry_login(file_text: str, image: str) -> str:
    """Return the X-Registry-Auth header for an image's registry, or an empty string.

    `file_text` is the file that `docker login` writes; raises ValueError if it is not.
    """
    first, slash, _ = image.partition("/")
    is_server = bool(slash) and (("." in first) or (":" in first) or first == "localhost")
    is_hub = not is_server or first in _HUB
    servers = ["https://index.docker.io/v1/", "docker.io"] if is_hub else [first]
    auths = json.loads(file_text).get("auths") or {}
    for server in servers:
        for name in (server, f"https://{server}", f"https://{server}/v1/", f"https://{server}/v2/"):
            if login := (auths.get(name) or {}).get("auth"):
                user, _, password = base64.b64decode(login).decode().partition(":")
                header = {"username": user, "password": password, "serveraddress": server}
                return base64.urlsafe_b64encode(json.dumps(header).encode()).decode()
    return ""


def _is_beside(info: Json, bridge: Json) -> bool:
    if "Docker Desktop" in str(info.get("OperatingSystem", "")):
        return False
    parts = (bridge.get("IPAM") or {}).get("Config") or []
    gateways = [part["Gateway"] for part in parts if part.get("Gateway")]
    if not gateways:
        return True
    # The engine may be in another network namespace; then its bridge has no address of ours.
    return any(is_own(ipaddress.ip_address(gateway)) for gateway in gateways)


def _is_podman(version: Json) -> bool:
    parts = [part.get("Name", "") for part in version.get("Components") or []]
    return any("podman" in part.lower() for part in parts)


def _shares_network(path: str) -> bool:
    """Return whether a Unix socket's listener is in our network namespace. Blocks."""
    peer = struct.Struct("3i")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PEER_SECONDS)
        try:
            probe.connect(path)
            credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, peer.size)
            pid, _, _ = peer.unpack(credentials)
            return Path(f"/proc/{pid}/ns/net").readlink() == Path("/proc/self/ns/net").readlink()
        except (OSError, AttributeError):  # macOS supports neither
            return False


def _certificates(directory: str) -> ssl.SSLContext:
    path = Path(directory)
    try:
        context = ssl.create_default_context(cafile=str(path / "ca.pem"))
        context.load_cert_chain(str(path / "cert.pem"), str(path / "key.pem"))
        # Python 3.13 requires more of certificates than the engines' guides put into them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    except OSError as exc:
        raise BackendUnavailable(
            f"The certificates in {directory} cannot be read", detail=str(exc)
        ) from exc
    return context


async def _read(
    answer: "aiohttp.ClientResponse", expect: Collection[int], explain: Explain = from_engine
) -> Any:
    content = await answer.read()
    if answer.status in expect or answer.status == _NOT_MODIFIED:
        return None
    is_json = "json" in answer.content_type
    if answer.status < _BAD:
        return json.loads(content) if content.strip() and is_json else content
    text = content.decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["message"]
    if any(status in expect and meant.search(str(text)) for status, meant in _PODMAN.items()):
        return None
    raise explain(answer.status, str(text))


def _to_params(values: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
    }


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
