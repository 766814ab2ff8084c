"""HTTP client for a service that runs sandboxes; calls return a value or raise a domain error.

A missing or malformed response is never taken for "gone".
"""

import hashlib
import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import msgspec

from agentsvc.base import (
    MASK,
    AgentsvcError,
    BackendUnavailable,
    CapacityExceeded,
    Conflict,
    OrderRejected,
    Secret,
    Unsupported,
    decode_or_none,
    sha256,
)

if TYPE_CHECKING:
    import aiohttp

HANDLE_VERSION: Final = 1
ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024

_TEXT_MAX: Final = 300
_BY_CODE: Final[dict[str, type[AgentsvcError]]] = {
    "capacity_exceeded": CapacityExceeded,
    "conflict": Conflict,
    "disk_full": CapacityExceeded,
    "gone": Conflict,
    "order_rejected": OrderRejected,
    "sandbox_not_usable": Conflict,
    "unsupported": Unsupported,
}
"""Error codes of another agentsvc."""
_BY_STATUS: Final[dict[int, type[AgentsvcError]]] = {
    HTTPStatus.BAD_REQUEST: OrderRejected,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Conflict,
    HTTPStatus.UNPROCESSABLE_ENTITY: OrderRejected,
    HTTPStatus.TOO_MANY_REQUESTS: CapacityExceeded,
}


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an error response, in the formats that services use."""

    detail: Any = None
    error: Any = None
    message: Any = None
    code: str = ""


_REFUSAL: Final = msgspec.json.Decoder(Refusal)


class Sent(TypedDict, total=False):
    """Optional parts of a request."""

    key: Secret | None
    query: Iterable[tuple[str, str]]
    body: Any


class Calls:
    """The connections to one service; open it once, close it at the end.

    A call uses the service's key, unless it passes another.
    """

    def __init__(self, url: str, key: Secret, *, header: str, time_limit: float) -> None:
        self.url = url.rstrip("/")
        self.key = key
        self._header = header
        self._time_limit = time_limit
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Create the session; sends no request."""
        import aiohttp  # noqa: PLC0415  # imported only for a configured backend

        if self._session is None:
            # Keep-alive is off: a request on a connection that the server is closing is lost.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=self._time_limit),
            )

    async def close(self) -> None:
        """Close all connections. Safe to call twice, or without open."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask[T](
        self,
        method: str,
        path: str,
        decoder: msgspec.json.Decoder[T],
        **sent: Unpack[Sent],
    ) -> T:
        """Return the decoded response; raises the matching domain error."""
        found = await self.find(method, path, decoder, **sent)
        if found is None:
            raise BackendUnavailable(
                f"{self.url} does not know the path {path}: check the `url` of the backend"
            )
        return found

    async def find[T](
        self,
        method: str,
        path: str,
        decoder: msgspec.json.Decoder[T],
        **sent: Unpack[Sent],
    ) -> T | None:
        """Return the decoded response, or None for a 404; raises the matching domain error."""
        content = await self._content(method, path, **sent)
        if content is None:
            return None
        try:
            return decoder.decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise BackendUnavailable(
                f"{self.url} responded to {path} with an unexpected format", detail=str(exc)
            ) from exc

    async def order(self, method: str, path: str, **sent: Unpack[Sent]) -> bool:
        """Send a request and ignore the body; return False for a 404, raise for other errors."""
        return await self._content(method, path, **sent) is not None

    async def _content(
        self,
        method: str,
        path: str,
        *,
        key: Secret | None = None,
        query: Iterable[tuple[str, str]] = (),
        body: Any = None,
    ) -> bytes | None:
        import aiohttp  # noqa: PLC0415  # as above

        if self._session is None:
            raise BackendUnavailable(f"The connection to {self.url} is not open")
        key = self.key if key is None else key
        headers = {self._header: key.reveal()} if key else {}
        data = None
        if body is not None:
            data = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            async with self._session.request(
                method,
                self.url + path,
                headers=headers,
                params=list(query),
                data=data,
                allow_redirects=False,
            ) as answer:
                status, content = answer.status, await self._read(answer)
        except TimeoutError as exc:
            raise BackendUnavailable(
                f"{self.url} gave no answer within {self._time_limit:g} s"
            ) from exc
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            raise BackendUnavailable(
                f"{self.url} cannot be reached", detail=f"{type(exc).__name__}: {exc}"
            ) from exc
        if status == HTTPStatus.NOT_FOUND:
            return None
        if not HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            raise self._failure(status, content, key)
        return content

    async def _read(self, answer: "aiohttp.ClientResponse") -> bytes:
        content = bytearray()
        async for part in answer.content.iter_any():
            content += part
            if len(content) > ANSWER_BYTES_MAX:
                raise BackendUnavailable(f"The response of {self.url} is too large")
        return bytes(content)

    def _failure(self, status: int, content: bytes, key: Secret) -> AgentsvcError:
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return BackendUnavailable(f"{self.url} rejected the key: check `api_key`")
        code, message = _read(content)
        kind = _BY_CODE.get(code) or _BY_STATUS.get(status, BackendUnavailable)
        text = message.replace(key.reveal(), MASK) if key else message
        return kind(f"{self.url} responded with {status}{f': {text}' if text else ''}")


def session_prefix(instance_id: str) -> str:
    """Return the name prefix of an installation's sandboxes at the service.

    With a sandbox's id appended, it fits into names of 63 characters.
    """
    return f"{hashlib.sha256(instance_id.encode()).hexdigest()[:12]}-"


def fingerprint(key: Secret) -> str:
    """Return a digest that identifies a key without revealing it."""
    return sha256(f"agentsvc-remote:{key.reveal()}")[:16]


def one_line(text: str) -> str:
    """Return the first line of another server's text, truncated."""
    return text.partition("\n")[0][:_TEXT_MAX]


def _read(content: bytes) -> tuple[str, str]:
    """Return code and text of an error response, both empty if it is malformed."""
    refusal = decode_or_none(content, _REFUSAL)
    if refusal is None:
        return "", ""
    text = next((part for part in (refusal.detail, refusal.error, refusal.message) if part), "")
    return refusal.code, one_line(text if isinstance(text, str) else json.dumps(text))
