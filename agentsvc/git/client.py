"""Requests to a git hosting service: allowed targets, size limits and errors.

A token is sent only to the host with which it was stored: a redirect is followed only below the
URL of the service's API.
"""

import asyncio
import base64
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from agentsvc.agentserver import AddressNotAllowed, refusal_in
from agentsvc.base import (
    AgentsvcError,
    BadRequest,
    GitProviderRateLimited,
    GitProviderUnavailable,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    decoder_of,
    exceeds_value_limit,
    now,
)
from agentsvc.domain import Provider
from agentsvc.domain import repositories as git
from agentsvc.settings import ProviderToken

ANSWER_MAX: Final = 8 * 1024 * 1024
"""Maximum size of a response; a hundred repositories take about one MiB."""

ITEMS_MAX: Final = 1000
"""Maximum items of a list; a page has at most a hundred, and a directory at GitHub a thousand."""

REDIRECTS_MAX: Final = 3

_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_MOVED: Final = _REDIRECTS | {405, 410}
"""Statuses for something that was moved or removed; GitLab responds with 405 to changes."""
_FOUND: Final = frozenset({200})
_DONE: Final = frozenset({200, 201, 202, 204, 304})
_EMPTY: Final[Mapping[str, Any]] = {}
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_WAIT_SECONDS: Final = 60
_WAIT_SECONDS_MAX: Final = 3600

type Value = str | int | bool | None
"""A query parameter; None is omitted."""


class Answer[T](Struct, frozen=True, kw_only=True):
    """A response of a service."""

    value: T
    headers: Mapping[str, str]
    status: int = HTTPStatus.OK
    path: str = ""
    """Path of the response's URL, after redirects."""

    def next_page(self) -> str | None:
        """Return the `page` parameter of the link to the next page, or None on the last page."""
        for url, rest in _LINK.findall(self.headers.get("Link", "")):
            if _IS_NEXT.search(rest):
                return page_in(url)
        return None

    def total(self, name: str) -> int | None:
        """Return the total number of items from a header, or None."""
        text = self.headers.get(name, "")
        return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else None


class GitApi(Struct, frozen=True, kw_only=True, eq=False):
    """The API of one service, with one token.

    `rest` is the base URL of all paths, `graphql` the URL for GraphQL queries, or None if the service
    has no GraphQL. Every method raises NotAuthenticated for a rejected token, NotAllowed
    for one without permission, NotFound, BadRequest, GitProviderRateLimited or GitProviderUnavailable.
    """

    session: aiohttp.ClientSession
    time_limit: float
    provider: Provider
    token: ProviderToken
    rest: str
    graphql: str | None = None

    async def get[T](
        self, path: str, kind: type[T] | msgspec.json.Decoder[T], /, **query: Value
    ) -> Answer[T]:
        """Send a GET request for a path whose parts are percent-encoded already."""
        answer = await self._send("GET", self._url(path, query))
        return Answer(value=self._decode(answer.value, kind), headers=answer.headers)

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Value] = _EMPTY,
        etag: str = "",
    ) -> Answer[Any]:
        """Send a request and return its response; the value is None if the body is empty.

        With an `etag`, the status is 304 and the body empty if nothing has changed since.
        """
        answer = await self._send(
            method,
            self._url(path, query),
            body=None if body is None else msgspec.json.encode(body),
            extra_headers={"If-None-Match": etag} if etag else {},
            good=_DONE,
        )
        value = self._decode(answer.value, _ANY) if answer.value.strip() else None
        return msgspec.structs.replace(answer, value=value)

    async def get_text(self, path: str, /, **query: Value) -> str:
        """Return the text at a path, whatever its media type."""
        answer = await self._send("GET", self._url(path, query), accept="*/*")
        return answer.value.decode(errors="replace")

    async def query[T](
        self, text: str, kind: type[T] | msgspec.json.Decoder[T], variables: Mapping[str, Any]
    ) -> T:
        """Return the result of a GraphQL query."""
        if self.graphql is None:
            raise self.unavailable("it has no GraphQL")
        body = msgspec.json.encode({"query": text, "variables": variables})
        raw = (await self._send("POST", self.graphql, body=body)).value
        answer = self._decode(raw, _Graphql)
        if answer.errors and bytes(answer.data) == _NULL:
            raise self._query_failure(answer.errors[0])
        return self._decode(bytes(answer.data), kind)

    def unavailable(self, detail: str) -> GitProviderUnavailable:
        """Return the error for a service that cannot be called."""
        return unavailable(self.provider, detail)

    def _url(self, path: str, query: Mapping[str, Value]) -> str:
        parameters = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        return f"{self.rest}{path}?{urlencode(parameters)}" if parameters else self.rest + path

    async def _send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        accept: str = "application/json",
        extra_headers: Mapping[str, str] = _EMPTY,
        good: frozenset[int] = _FOUND,
    ) -> Answer[bytes]:
        headers = {**_headers(self.provider, self.token), "Accept": accept, **extra_headers}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(self.time_limit):
                for _ in range(REDIRECTS_MAX + 1):
                    async with self.session.request(
                        method,
                        URL(url, encoded=True),
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                    ) as response:
                        if method != "GET" or response.status not in _REDIRECTS:
                            return await self._read(response, good)
                        url = self._target(url, response.headers.get("Location", ""))
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            if refusal := refusal_in(exc):
                raise not_public(self.provider, refusal) from exc
            raise self.unavailable(repr(exc)) from exc
        raise self.unavailable("too many redirects")

    async def _read(self, response: aiohttp.ClientResponse, good: frozenset[int]) -> Answer[bytes]:
        if good is _DONE and response.status in _MOVED:
            raise NotFound(f"The git provider `{self.provider.value}` has moved or removed it")
        if response.status not in good:
            raise self._failure(response.status, response.headers)
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > ANSWER_MAX:
                raise self.unavailable("the answer is too long")
        return Answer(
            value=bytes(body),
            headers=response.headers,
            status=response.status,
            path=response.url.path,
        )

    def _target(self, url: str, location: str) -> str:
        target = urljoin(url, location)
        if not location or ".." in urlsplit(target).path or not git.is_below(target, self.rest):
            # The token must not be sent to another place.
            raise self.unavailable("it redirects to another URL")
        return target

    def _decode[T](self, body: bytes, kind: type[T] | msgspec.json.Decoder[T]) -> T:
        if exceeds_value_limit(body):
            raise self.unavailable("the answer has too many values")
        try:
            value = decoder_of(kind).decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
            raise self.unavailable(f"unexpected answer: {exc}") from exc
        _shorten(value)
        return value

    def _failure(self, status: int, headers: Mapping[str, str]) -> AgentsvcError:
        name = self.provider.value
        if _is_limited(status, headers):
            return self._rate_limited(headers)
        match status:
            case 401:
                return refused(self.provider)
            case 403:
                return NotAllowed(f"The `{name}` token does not allow this")
            case 404:
                return NotFound(f"Not found at the git provider `{name}`")
            case 400 | 409 | 422:
                return BadRequest(f"The git provider `{name}` rejected the request")
            case _:
                return self.unavailable(f"status {status}")

    def _query_failure(self, error: "_GraphqlError") -> AgentsvcError:
        status = _GRAPHQL_STATUSES.get(error.type or "")
        return self._failure(status, {}) if status else self.unavailable("the query failed")

    def _rate_limited(self, headers: Mapping[str, str]) -> GitProviderRateLimited:
        return GitProviderRateLimited(
            f"The git provider `{self.provider.value}` limits the requests of this token",
            retry_after_seconds=wait_seconds(headers, now().timestamp()),
        )


def _shorten(value: object) -> None:
    """Truncate the lists of a response to `ITEMS_MAX` items."""
    if isinstance(value, list):
        del value[ITEMS_MAX:]
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            _shorten(getattr(value, name))


def refused(provider: Provider) -> NotAuthenticated:
    """Return the error for a token that its service rejects."""
    text = f"Invalid token. Please make sure it is a valid {provider.value} token."
    return NotAuthenticated(text, extra={"error": text})


def unavailable(provider: Provider, detail: str) -> GitProviderUnavailable:
    """Return the error for a service that cannot be called."""
    return GitProviderUnavailable(
        f"The git provider `{provider.value}` is unavailable", detail=detail
    )


def not_public(provider: Provider, exc: AddressNotAllowed) -> GitProviderUnavailable:
    """Return the error for a service in a private network that is not allowed."""
    return GitProviderUnavailable(
        f"The git provider `{provider.value}` may not be called: {exc}. An administrator can add the"
        " host to `git.private_hosts` in the configuration"
    )


def page_in(url: str) -> str | None:
    """Return the `page` parameter of a link, or None."""
    values = parse_qs(url.partition("?")[2].partition("#")[0]).get("page", [])
    return values[-1] if values else None


def wait_seconds(headers: Mapping[str, str], timestamp: float) -> int:
    """Return the seconds to wait before the next request: from the headers, at most an hour."""
    for name, since in (
        ("Retry-After", 0.0),
        ("X-RateLimit-Reset", timestamp),
        ("RateLimit-Reset", timestamp),
    ):
        text = headers.get(name, "")
        if text.isdecimal() and len(text) < _DIGITS_MAX:
            return min(max(round(int(text) - since), 1), _WAIT_SECONDS_MAX)
    return _WAIT_SECONDS


class _GraphqlError(Struct, frozen=True):
    type: str | None = None


class _Graphql(Struct, frozen=True):
    data: msgspec.Raw = msgspec.Raw(b"null")
    errors: list[_GraphqlError] = []


_DIGITS_MAX: Final = 18
_NULL: Final = b"null"
_GRAPHQL_STATUSES: Final = {
    "NOT_FOUND": 404,
    "FORBIDDEN": 403,
    "INSUFFICIENT_SCOPES": 403,
    "RATE_LIMITED": 429,
}
_LINK: Final = re.compile(r"<([^<>]*)>([^<]*)")
_IS_NEXT: Final = re.compile(r';\s*rel="?next\b')


def _is_limited(status: int, headers: Mapping[str, str]) -> bool:
    """Return whether a response reports a rate limit; GitHub uses the status 403 for that, too."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or (
        status == HTTPStatus.FORBIDDEN
        and ("Retry-After" in headers or headers.get("X-RateLimit-Remaining") == "0")
    )


def _headers(provider: Provider, token: ProviderToken) -> dict[str, str]:
    text = token.token.reveal()
    if provider is Provider.AZURE_DEVOPS:
        text = f":{text}"
    if provider is Provider.FORGEJO:
        authorization = f"token {text}"
    elif ":" in text:
        authorization = f"Basic {base64.b64encode(text.encode()).decode()}"
    else:
        authorization = f"Bearer {text}"
    return {"Authorization": authorization, "User-Agent": "agentsvc"}
