"""Requests to an API server; each returns a value or raises one of this server's errors.

A missing or malformed response is never taken as proof that an object is gone.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentsvc.base import BackendUnavailable, monotonic

from .failures import from_api
from .login import Access, log_in
from .settings import KubernetesConfig

if TYPE_CHECKING:
    import aiohttp

type Json = dict[str, Any]
type Query = Mapping[str, str] | Sequence[tuple[str, str]]

JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"
NAMES_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

_PROTOCOL: Final = "v4.channel.k8s.io"
_PAGE: Final = 500
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_LINE_BYTES_MAX: Final = 2**22
_DECODER: Final = msgspec.json.Decoder()


class _Sent(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    query: Query = ()
    headers: dict[str, str] = {}
    data: bytes | None = None


class Api:
    """An HTTP client for the API server of one cluster; open it before use, and close it."""

    def __init__(self, config: KubernetesConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._access: Access | None = None
        self._login = asyncio.Lock()
        self.heard_at = 0.0
        """The monotonic time at which the API server last sent something; 0 before that."""

    @property
    def namespace(self) -> str:
        """The default namespace; before the login, the configured one."""
        return self._access.namespace if self._access else self._config.namespace

    async def open(self) -> None:
        """Import the client library, log in and create the session; raises BackendUnavailable."""
        aiohttp = await asyncio.to_thread(_load_libraries)
        if self._session is None:
            self._access = await log_in(self._config)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self._config.request_seconds
                ),
                read_bufsize=_LINE_BYTES_MAX,
            )

    async def close(self) -> None:
        """Close all connections. Idempotent, and safe without `open`."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
        expect: Sequence[int] = (),
    ) -> Json | None:
        """Return the response's object, or None for a status in `expect`; raises otherwise."""
        headers = {"Accept": accept, **({"Content-Type": content_type} if body is not None else {})}
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with asyncio.timeout(self._config.request_seconds):
                sent = _Sent(method=method, path=path, query=query, headers=headers, data=data)
                status, content = await self._exchange(sent)
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"The API server gave no answer within {self._config.request_seconds:g} s"
            ) from exc
        said = _decode(content)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES and isinstance(said, dict):
            return said
        if status in expect and _is_its_own(said):
            return None
        raise from_api(status, said)

    async def get(self, path: str) -> Json | None:
        """Return an object, or None if the API server reports that it does not exist."""
        return await self.ask("GET", path, expect=(HTTPStatus.NOT_FOUND,))

    async def may(self, verb: str, resource: str, group: str = "") -> bool:
        """Return whether this server has a permission in its namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "resource": resource}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "group": group}},
        }
        path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        found = await self.ask("POST", path, body=review)
        return bool(((found or {}).get("status") or {}).get("allowed"))

    async def list_all(
        self, path: str, *, selector: str = "", fields: str = "", names_only: bool = False
    ) -> tuple[list[Json], str]:
        """Return all objects of a kind, fetched in pages, and the list's resource version."""
        accept = NAMES_ONLY if names_only else JSON
        found: list[Json] = []
        token = ""
        while True:
            query = {
                "limit": str(_PAGE),
                "labelSelector": selector,
                "fieldSelector": fields,
                "continue": token,
            }
            asked = {name: value for name, value in query.items() if value}
            page = await self.ask("GET", path, query=asked, accept=accept) or {}
            found += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return found, str(metadata.get("resourceVersion") or "")

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, *, silence_seconds: float | None = None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Open a streamed response; raises the error of its status, or BackendUnavailable."""
        sent = _Sent(method="GET", path=path, query=query)
        silence = silence_seconds
        async with self._told(), self._request(sent, silence_seconds=silence) as answer:
            self.heard_at = monotonic()
            if answer.status != HTTPStatus.OK:
                raise from_api(answer.status, _decode(await _read(answer)))
            yield answer

    @asynccontextmanager
    async def socket(
        self, path: str, query: Query
    ) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
        """Open a WebSocket to a pod; raises the handshake's error, or BackendUnavailable."""
        async with self._told():
            try:
                async with asyncio.timeout(self._config.request_seconds):
                    opened = await self._connect(path, query)
            except TimeoutError as exc:
                raise BackendUnavailable("The API server opens no way to the pod") from exc
            async with opened:
                yield opened

    async def _connect(self, path: str, query: Query) -> "aiohttp.ClientWebSocketResponse":
        import aiohttp  # noqa: PLC0415  # as above

        for is_last in (False, True):
            access, session = await self._ready()
            try:
                opened: aiohttp.ClientWebSocketResponse = await session.ws_connect(
                    f"{access.url}/{path}",
                    params=_pairs(query),
                    headers=_headers(access),
                    protocols=(_PROTOCOL,),
                    max_msg_size=0,
                    **_tls(access),
                )
            except aiohttp.WSServerHandshakeError as exc:
                if exc.status != HTTPStatus.UNAUTHORIZED or is_last:
                    raise
                await self._renew(access)
            else:
                return opened
        raise AssertionError

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        import aiohttp  # noqa: PLC0415  # nothing is imported for a backend nobody configured

        try:
            yield
        except aiohttp.WSServerHandshakeError as exc:
            raise from_api(exc.status, f"the pod takes no connection: {exc.message}") from exc
        except TimeoutError as exc:
            raise BackendUnavailable("The API server has fallen silent") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise BackendUnavailable(
                "The API server cannot be reached", detail=f"{type(exc).__name__}: {exc}"
            ) from exc

    async def _exchange(self, sent: _Sent) -> tuple[int, bytes]:
        used = self._access
        status, content = await self._once(sent)
        if status == HTTPStatus.UNAUTHORIZED:
            # Tokens end, and are put anew where this one came from.
            await self._renew(used)
            status, content = await self._once(sent)
        self.heard_at = monotonic()
        return status, content

    async def _once(self, sent: _Sent) -> tuple[int, bytes]:
        async with self._told(), self._request(sent) as answer:
            return answer.status, await _read(answer)

    @asynccontextmanager
    async def _request(
        self, sent: _Sent, *, silence_seconds: float | None = None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        import aiohttp  # noqa: PLC0415  # as above

        access, session = await self._ready()
        connect = self._config.request_seconds
        async with session.request(
            sent.method,
            f"{access.url}/{sent.path}",
            params=_pairs(sent.query),
            headers={**sent.headers, **_headers(access)},
            data=sent.data,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(sock_connect=connect, sock_read=silence_seconds),
            **_tls(access),
        ) as answer:
            yield answer

    async def _ready(self) -> "tuple[Access, aiohttp.ClientSession]":
        if self._session is None or self._access is None:
            raise BackendUnavailable("The connection to the cluster is not open")
        if self._access.is_over:
            await self._renew(self._access)
        return self._access, self._session

    async def _renew(self, used: Access | None) -> None:
        async with self._login:
            if self._access is used:
                self._access = await log_in(self._config)


def _load_libraries() -> Any:
    # Takes a second or two, and nothing else shall wait for it.
    import aiohttp  # noqa: PLC0415
    import kubernetes_asyncio.config  # noqa: F401, PLC0415

    return aiohttp


def _pairs(query: Query) -> list[tuple[str, str]]:
    return list(query.items()) if isinstance(query, Mapping) else list(query)


def _headers(access: Access) -> dict[str, str]:
    return {"Authorization": access.token.reveal()} if access.token else {}


def _tls(access: Access) -> dict[str, Any]:
    found = {
        "ssl": access.ssl_context,
        "server_hostname": access.server_name,
        "proxy": access.proxy,
    }
    return {name: value for name, value in found.items() if value is not None}


async def _read(answer: "aiohttp.ClientResponse") -> bytes:
    content = bytearray()
    async for part in answer.content.iter_any():
        content += part
        if len(content) > _ANSWER_BYTES_MAX:
            raise BackendUnavailable("The API server answers without an end")
    return bytes(content)


def _is_its_own(said: Any) -> bool:
    # What stands before an API server answers, too, and knows nothing.
    return isinstance(said, dict) and said.get("kind") == "Status"


def _decode(content: bytes) -> Any:
    try:
        return _DECODER.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return content[:1000].decode(errors="replace")
