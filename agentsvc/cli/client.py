"""HTTP client of the commands: requests and event streams, with the standard library only.

This keeps commands fast to start. Every failure is raised as CommandFailed, with a hint if there is
one.
"""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ClassVar, Final
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from agentsvc.base import Secret
from agentsvc.cli import CommandFailed

V1: Final = "/api/v1"
KEY_HEADER: Final = "X-Session-API-Key"
PAGE: Final = 100
type Query = Mapping[str, str | int]
BEAT: Final = "beat"

_ANSWER_SECONDS: Final = 150.0
_PART_BYTES: Final = 256 * 1024
_SILENCE_SECONDS: Final = 60.0
"""Longer than the interval of heartbeats on a stream."""
_UNAVAILABLE: Final = (502, 503, 504)
"""Statuses of a proxy while the server restarts."""
_ADDRESS_HINT: Final = "write it as http://HOST:PORT, and pass the key with --key"
_HINT: Final = "check that it runs, and that --url is correct"
_MISSING_HINT: Final = (
    "it does not exist, or the server's configuration disables it; check that --url is correct"
)
_KEY_HINT: Final = "pass a valid key with --key"


class ConnectionFailed(CommandFailed):
    """No response from the URL, or an incomplete one, as while a server restarts."""


class StreamBroken(CommandFailed):
    """A stream was interrupted, or is temporarily unavailable."""


class RequestRefused(CommandFailed):
    """The server responded with an error or a redirect."""

    def __init__(self, status: int, message: str, hint: str = "", *, error: str = "") -> None:
        """Store the status, and the `error` of the response."""
        super().__init__(message, hint)
        self.status = status
        self.error = error


class StreamMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream."""

    type: str
    id: int | None
    data: Any


class Api:
    """A server at a URL, called with one key; `renew` returns a new key after a 401."""

    answers: ClassVar[int] = 0
    """Number of responses received in this process, from any server."""

    def __init__(self, url: str, key: Secret, *, renew: Callable[[], Secret] | None = None) -> None:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            parts, is_url = urlsplit(""), False
        if "@" in parts.netloc:
            raise CommandFailed("the URL must not contain a user name or password", _ADDRESS_HINT)
        if not is_url or parts.query or parts.fragment:
            raise CommandFailed(f"`{url}` is not a server URL", "write it as http://HOST:PORT")
        self.url = url.rstrip("/")
        self._parts = parts
        self._prefix = parts.path.rstrip("/")
        self._key = key
        self._renew = renew

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None) -> Any:
        """Return the decoded JSON response; raises RequestRefused for an error response."""
        sent = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        with self.open(method, path, query=query, body=sent, headers=kind) as response:
            text = response.read()
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as exc:
            raise self.no_server() from exc

    def no_server(self) -> CommandFailed:
        """Return the error to raise for a response that did not come from an agentsvc server."""
        return CommandFailed(f"the server at {self.url} is not an agentsvc server", _HINT)

    def pages(self, path: str, query: Query | None = None) -> Iterator[Any]:
        """Yield every item of a paginated search."""
        asked: dict[str, str | int] = {"limit": PAGE, **(query or {})}
        while True:
            page = self.call("GET", path, query=asked)
            try:
                items, following = page["items"], page["next_page_id"]
            except (KeyError, TypeError) as exc:
                raise self.no_server() from exc
            yield from items
            if not following:
                return
            asked["page_id"] = following

    def parts(
        self, path: str, query: Mapping[str, str | int | Sequence[str]] | None = None
    ) -> Iterator[bytes]:
        """Yield a binary response in chunks; raises CommandFailed if it is incomplete."""
        with self.open("GET", path, query=query) as answer:
            while part := answer.read(_PART_BYTES):
                yield part
            if answer.length:
                raise ConnectionFailed(f"incomplete response from {self.url}", _HINT)

    def stream(self, path: str, *, after: int, beats: bool = False) -> Iterator[StreamMessage]:
        """Yield the messages of a stream after an event, until the server ends it.

        With `beats`, heartbeats are yielded as messages of the type `beat`. Raises StreamBroken when
        the connection is lost; the caller can continue after the last id that it received.
        """
        kind = {"Accept": "text/event-stream"}
        asked = {} if after < 0 else {"after": after}
        try:
            with self.open(
                "GET", path, query=asked, headers=kind, silence=_SILENCE_SECONDS
            ) as lines:
                for message in read_messages(iter(lines.readline, b"")):
                    if beats or message.type != BEAT:
                        yield message
        except (ConnectionFailed, RequestRefused) as exc:
            if isinstance(exc, RequestRefused) and exc.status not in _UNAVAILABLE:
                raise
            raise StreamBroken(exc.message, exc.hint) from exc
        except (ValueError, RecursionError) as exc:
            raise self.no_server() from exc

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int | Sequence[str]] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float = _ANSWER_SECONDS,
    ) -> Iterator[http.client.HTTPResponse]:
        """Yield a successful response for reading; raises RequestRefused for any other.

        Raises ConnectionFailed if there is no response, or the connection is lost, also while it is read.
        """
        target = quote(self._prefix + path, safe="/%") + (
            f"?{urlencode(query, doseq=True)}" if query else ""
        )
        try:
            with closing(self._connect(silence)) as connection:
                response = self._send(connection, method, target, body, headers or {})
                if response.status == http.client.UNAUTHORIZED and self._renew is not None:
                    response.read()
                    self._key, self._renew = self._renew(), None
                    response = self._send(connection, method, target, body, headers or {})
                if response.status >= http.client.MULTIPLE_CHOICES:
                    raise _refusal(response, response.read())
                with response:
                    yield response
        except (OSError, http.client.HTTPException) as exc:
            raise ConnectionFailed(f"incomplete response from {self.url}: {exc}", _HINT) from exc

    def _connect(self, silence: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        is_plain = self._parts.scheme == "http"
        kind = http.client.HTTPConnection if is_plain else http.client.HTTPSConnection
        return kind(host, port, timeout=silence)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        key = self._key.reveal()
        if not (key.isascii() and key.isprintable()):
            raise CommandFailed("the key contains invalid characters", _KEY_HINT)
        try:
            connection.request(method, target, body=body, headers={**headers, KEY_HEADER: key})
            response = connection.getresponse()
        except (OSError, UnicodeError, http.client.HTTPException) as exc:
            raise ConnectionFailed(f"no response from {self.url}: {exc}", _HINT) from exc
        Api.answers += 1
        return response


def read_messages(lines: Iterator[bytes]) -> Iterator[StreamMessage]:
    """Yield the server-sent events and heartbeats of lines; raises ValueError for invalid ones."""
    fields: dict[str, str] = {}
    for line in lines:
        if line.startswith(b":"):
            yield StreamMessage(type=BEAT, id=None, data=None)
            continue
        name, _, value = line.decode(errors="replace").rstrip("\r\n").partition(": ")
        if name:
            fields[name] = value
        elif kind := fields.get("event"):
            number = int(fields["id"]) if fields.get("id") else None
            data = json.loads(fields.get("data", ""))
            if not isinstance(data, dict):
                raise ValueError("not a message of a stream")
            yield StreamMessage(type=kind, id=number, data=data)
            fields = {}


def _refusal(response: http.client.HTTPResponse, text: bytes) -> RequestRefused:
    status, hint = response.status, ""
    if status == http.client.UNAUTHORIZED:
        hint = _KEY_HINT
    elif status == http.client.NOT_FOUND:
        hint = _MISSING_HINT
    elif place := response.getheader("Location"):
        hint = f"it redirects to {place}; check that --url is correct"
    try:
        body = json.loads(text)
        detail = body["detail"]
        if isinstance(detail, list):
            detail = "; ".join(f"{_location(one.get('loc'))}: {one.get('msg')}" for one in detail)
        error = str(body.get("error") or "")
        if hint == _MISSING_HINT and detail != "Not Found":
            hint = ""  # The path exists, and the message tells which item does not.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"the server responded with status {status} and no reason"
        return RequestRefused(status, message, hint)
    return RequestRefused(status, f"{detail}", hint, error=error)


def _location(loc: Any) -> str:
    return ".".join(str(part) for part in loc or () if part != "body") or "the request"
