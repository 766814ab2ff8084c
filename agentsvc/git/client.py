"""Requests to a git hosting service: where they may go, how much they may bring, how they fail.

A token goes to the host it was stored with and nowhere else: a redirect is followed only below
the address of the service's API.
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
    has_many_values,
    now,
)
from agentsvc.domain import Provider
from agentsvc.domain import repositories as git
from agentsvc.settings import ProviderToken

ANSWER_MAX: Final = 8 * 1024 * 1024
"""The longest answer that is read; a hundred repositories take about one MiB."""

ITEMS_MAX: Final = 1000
"""How many items of a list are taken; a page has a hundred, and a directory at GitHub a thousand."""

REDIRECTS_MAX: Final = 3

_REDIRECTS: Final = frozenset({301, 302, 307, 308})
_MOVED: Final = _REDIRECTS | {405, 410}
"""What is answered where something is not any more; 405 by GitLab, to what would change it."""
_FOUND: Final = frozenset({200})
_DONE: Final = frozenset({200, 201, 202, 204, 304})
_NONE: Final[Mapping[str, Any]] = {}
_ANY: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder()
_WAIT_SECONDS: Final = 60
_WAIT_SECONDS_MAX: Final = 3600

type Value = str | int | bool | None
"""A parameter of a query; None is left out."""


class Answer[T](Struct, frozen=True, kw_only=True):
    """What a service answered."""

    value: T
    headers: Mapping[str, str]
    status: int = HTTPStatus.OK
    path: str = ""
    """Where it was answered in the end, after redirects."""

    def next_page(self) -> str | None:
        """Return the `page` of the link to the next page, None on the last one."""
        for url, rest in _LINK.findall(self.headers.get("Link", "")):
            if _IS_NEXT.search(rest):
                return page_in(url)
        return None

    def total(self, name: str) -> int | None:
        """Return the number of all items that a header tells, if it does."""
        text = self.headers.get(name, "")
        return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else None


class GitApi(Struct, frozen=True, kw_only=True, eq=False):
    """The API of one service, as one token opens it.

    `rest` is the address below which every path is, `graphql` where queries in GraphQL go, if the
    service takes any. Every method raises NotAuthenticated for a token that is refused, NotAllowed
    for one that may not, NotFound, BadRequest, GitProviderRateLimited or GitProviderUnavailable.
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
        """Return what is at a path, whose parts are quoted already."""
        answer = await self._send("GET", self._url(path, query))
        return Answer(value=self._decode(answer.value, kind), headers=answer.headers)

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Value] = _NONE,
        etag: str = "",
    ) -> Answer[Any]:
        """Do something, and return what is answered; None for nothing, and for what is as it was.

        With an `etag`, what has not changed since is not sent again: the status is 304 then.
        """
        answer = await self._send(
            method,
            self._url(path, query),
            body=None if body is None else msgspec.json.encode(body),
            more={"If-None-Match": etag} if etag else {},
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
        """Return what a query in GraphQL finds."""
        if self.graphql is None:
            raise self.unavailable("it takes no GraphQL")
        body = msgspec.json.encode({"query": text, "variables": variables})
        raw = (await self._send("POST", self.graphql, body=body)).value
        answer = self._decode(raw, _Graphql)
        if answer.errors and bytes(answer.data) == _NULL:
            raise self._query_failure(answer.errors[0])
        return self._decode(bytes(answer.data), kind)

    def unavailable(self, detail: str) -> GitProviderUnavailable:
        """Return the error for a service that cannot be asked."""
        return unavailable(self.provider, detail)

    def _url(self, path: str, query: Mapping[str, Value]) -> str:
        given = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in query.items()
            if value is not None
        }
        return f"{self.rest}{path}?{urlencode(given)}" if given else self.rest + path

    async def _send(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        accept: str = "application/json",
        more: Mapping[str, str] = _NONE,
        good: frozenset[int] = _FOUND,
    ) -> Answer[bytes]:
        headers = {**_headers(self.provider, self.token), "Accept": accept, **more}
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
            # Whoever is there has no right to the token.
            raise self.unavailable("it redirects to another place")
        return target

    def _decode[T](self, body: bytes, kind: type[T] | msgspec.json.Decoder[T]) -> T:
        if has_many_values(body):
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
                return BadRequest(f"The git provider `{name}` refuses the request")
            case _:
                return self.unavailable(f"status {status}")

    def _query_failure(self, error: "_GraphqlError") -> AgentsvcError:
        status = _GRAPHQL_STATUSES.get(error.type or "")
        return self._failure(status, {}) if status else self.unavailable("the query failed")

    def _rate_limited(self, headers: Mapping[str, str]) -> GitProviderRateLimited:
        return GitProviderRateLimited(
            f"The git provider `{self.provider.value}` wants fewer requests from this token",
            retry_after_seconds=wait_seconds(headers, now().timestamp()),
        )


def _shorten(value: object) -> None:
    """Take out of the lists of an answer what is more than anybody asks for."""
    if isinstance(value, list):
        del value[ITEMS_MAX:]
    elif isinstance(value, Struct):
        for name in value.__struct_fields__:
            _shorten(getattr(value, name))


def refused(provider: Provider) -> NotAuthenticated:
    """Return the error for a token that its service refuses."""
    text = f"Invalid token. Please make sure it is a valid {provider.value} token."
    return NotAuthenticated(text, extra={"error": text})


def unavailable(provider: Provider, detail: str) -> GitProviderUnavailable:
    """Return the error for a service that cannot be asked."""
    return GitProviderUnavailable(
        f"The git provider `{provider.value}` cannot be asked", detail=detail
    )


def not_public(provider: Provider, exc: AddressNotAllowed) -> GitProviderUnavailable:
    """Return the error for a service in a network where only administrators may have it asked."""
    return GitProviderUnavailable(
        f"The git provider `{provider.value}` is not asked: {exc}. An administrator can add the"
        " host to `git.private_hosts` in the configuration"
    )


def page_in(url: str) -> str | None:
    """Return the `page` in the query of a link."""
    values = parse_qs(url.partition("?")[2].partition("#")[0]).get("page", [])
    return values[-1] if values else None


def wait_seconds(headers: Mapping[str, str], timestamp: float) -> int:
    """Return how long a service wants to be left alone, counted from a moment, within reason."""
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
    """Tell whether a refusal means too many requests; GitHub says so as "forbidden", too."""
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
