"""A client of a server for commands: plain requests and streams, on the standard library alone.

Commands start fast that way. Whatever goes wrong is raised as CommandFailed, with a hint where there
is one.
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
"""Longer than the time between two signs of life on a stream."""
_AWAY: Final = (502, 503, 504)
"""What a proxy answers in the place of a server that restarts."""
_ADDRESS_HINT: Final = "write it as http://HOST:PORT, and name the key with --key"
_HINT: Final = "see whether it runs, and whether --url is right"
_MISSING_HINT: Final = (
    "it is not there, or the server's configuration switches it off; see whether --url is right"
)
_KEY_HINT: Final = "name a key that is valid with --key"


class NoAnswer(CommandFailed):
    """Nobody answers at the URL, or not to the end, as while a server restarts."""


class StreamBroken(CommandFailed):
    """A stream has broken off, or cannot be had for now."""


class RequestRefused(CommandFailed):
    """The server answered, and not with what was asked for."""

    def __init__(self, status: int, message: str, hint: str = "", *, error: str = "") -> None:
        """Keep the status, and the `error` that the answer names."""
        super().__init__(message, hint)
        self.status = status
        self.error = error


class StreamMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a stream."""

    type: str
    id: int | None
    data: Any


class Api:
    """A server at a URL, called with one key; `renew` finds another where that one is refused."""

    answers: ClassVar[int] = 0
    """How many have come, from whatever server."""

    def __init__(self, url: str, key: Secret, *, renew: Callable[[], Secret] | None = None) -> None:
        try:
            parts = urlsplit(url)
            is_url = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            parts, is_url = urlsplit(""), False
        if "@" in parts.netloc:
            raise CommandFailed("a URL takes no user name and no password", _ADDRESS_HINT)
        if not is_url or parts.query or parts.fragment:
            raise CommandFailed(f"`{url}` is no URL of a server", "write it as http://HOST:PORT")
        self.url = url.rstrip("/")
        self._parts = parts
        self._prefix = parts.path.rstrip("/")
        self._key = key
        self._renew = renew

    def call(self, method: str, path: str, *, query: Query | None = None, body: Any = None) -> Any:
        """Return what the server answers, decoded; raises RequestRefused for an error of its."""
        sent = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if body is not None else {}
        with self.open(method, path, query=query, body=sent, headers=kind) as response:
            text = response.read()
        try:
            return json.loads(text) if text else None
        except (ValueError, RecursionError) as exc:
            raise self.no_server() from exc

    def no_server(self) -> CommandFailed:
        """Return what to raise where an answer has not the form of a server's."""
        return CommandFailed(f"what answers at {self.url} is no agentsvc server", _HINT)

    def pages(self, path: str, query: Query | None = None) -> Iterator[Any]:
        """Yield every item of a search, page after page."""
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
        """Yield the pieces of an answer that is no JSON; raises CommandFailed unless all of it comes."""
        with self.open("GET", path, query=query) as answer:
            while part := answer.read(_PART_BYTES):
                yield part
            if answer.length:
                raise NoAnswer(f"no whole answer comes from {self.url}", _HINT)

    def stream(self, path: str, *, after: int, beats: bool = False) -> Iterator[StreamMessage]:
        """Yield the messages of a stream behind an event, until the server ends it.

        Signs of life are `beat`, for who wants them.
        Raises StreamBroken when it breaks off; the caller goes on behind the last id that it saw.
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
        except (NoAnswer, RequestRefused) as exc:
            if isinstance(exc, RequestRefused) and exc.status not in _AWAY:
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
        """Give an answer that is right, to be read; raises CommandFailed for any other.

        Raises NoAnswer where it breaks off, also while it is read.
        """
        target = quote(self._prefix + path, safe="/%") + (
            f"?{urlencode(query, doseq=True)}" if query else ""
        )
        try:
            with closing(self._connect(silence)) as connection:
                response = self._ask(connection, method, target, body, headers or {})
                if response.status == http.client.UNAUTHORIZED and self._renew is not None:
                    response.read()
                    self._key, self._renew = self._renew(), None
                    response = self._ask(connection, method, target, body, headers or {})
                if response.status >= http.client.MULTIPLE_CHOICES:
                    raise _refusal(response, response.read())
                with response:
                    yield response
        except (OSError, http.client.HTTPException) as exc:
            raise NoAnswer(f"no whole answer comes from {self.url}: {exc}", _HINT) from exc

    def _connect(self, silence: float) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        is_plain = self._parts.scheme == "http"
        kind = http.client.HTTPConnection if is_plain else http.client.HTTPSConnection
        return kind(host, port, timeout=silence)

    def _ask(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> http.client.HTTPResponse:
        key = self._key.reveal()
        if not (key.isascii() and key.isprintable()):
            raise CommandFailed("the key has characters that no key has", _KEY_HINT)
        try:
            connection.request(method, target, body=body, headers={**headers, KEY_HEADER: key})
            response = connection.getresponse()
        except (OSError, UnicodeError, http.client.HTTPException) as exc:
            raise NoAnswer(f"no server answers at {self.url}: {exc}", _HINT) from exc
        Api.answers += 1
        return response


def read_messages(lines: Iterator[bytes]) -> Iterator[StreamMessage]:
    """Yield the server-sent events among lines, and the signs of life; raises ValueError for others."""
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
                raise ValueError("no message of a stream")
            yield StreamMessage(type=kind, id=number, data=data)
            fields = {}


def _refusal(response: http.client.HTTPResponse, text: bytes) -> RequestRefused:
    status, hint = response.status, ""
    if status == http.client.UNAUTHORIZED:
        hint = _KEY_HINT
    elif status == http.client.NOT_FOUND:
        hint = _MISSING_HINT
    elif place := response.getheader("Location"):
        hint = f"it sends on to {place}; see whether --url is right"
    try:
        body = json.loads(text)
        detail = body["detail"]
        if isinstance(detail, list):
            detail = "; ".join(f"{_location(one.get('loc'))}: {one.get('msg')}" for one in detail)
        error = str(body.get("error") or "")
        if hint == _MISSING_HINT and detail != "Not Found":
            hint = ""  # The server has such things, and says which one it has not.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        message = f"the server answers {status}, and does not say why"
        return RequestRefused(status, message, hint)
    return RequestRefused(status, f"{detail}", hint, error=error)


def _location(loc: Any) -> str:
    return ".".join(str(part) for part in loc or () if part != "body") or "the request"
