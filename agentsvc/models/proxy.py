"""Forwards requests of sandboxes to language models, adding the key that sandboxes do not have."""

import contextlib
import functools
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Final

import aiohttp
from yarl import URL

from agentsvc.agentserver import SafeConnector, refusal_in
from agentsvc.base import BodyTooLarge, ModelUnavailable, without_secrets
from agentsvc.models.access import check_host, may_ask, model_connector, model_headers
from agentsvc.models.hosts import host_of_url
from agentsvc.models.wire import CallUsage, Upstream, UsageReader
from agentsvc.plugin.egress import BadHost

LARGEST_ANSWER_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a response that is not a stream."""

_LARGEST_FAILURE_BYTES: Final = 256 * 1024
_PRICE_HEADER: Final = "x-litellm-response-cost"
_CONNECT_SECONDS: Final = 30.0
_PASSED_ON: Final = ("Content-Type", "Retry-After")


class ModelTimedOut(ModelUnavailable):
    """The model received the request and did not respond in time: the cost is unknown."""


class ModelResponse:
    """The streamed response of a model."""

    def __init__(self, response: aiohttp.ClientResponse, upstream: Upstream, asked: int) -> None:
        self._response = response
        self._upstream = upstream
        self.is_stream = response.content_type == "text/event-stream"
        self._reader = UsageReader(is_stream=self.is_stream, asked_bytes=asked)
        self.status = response.status
        said = {name: response.headers.get(name, "") for name in _PASSED_ON}
        # Values that cannot be forwarded would break the response.
        self.headers = {name: text for name, text in said.items() if text and text.isprintable()}

    @property
    def is_good(self) -> bool:
        """Whether the model accepted the request, which costs something."""
        return self.status < HTTPStatus.BAD_REQUEST

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the body; that of an error is truncated, and the key in it masked."""
        try:
            if not self.is_good:
                yield await self._failure()
                return
            size = 0
            async for data in self._response.content.iter_any():
                size += len(data)
                if size > LARGEST_ANSWER_BYTES and not self.is_stream:
                    exc = BodyTooLarge("The model's answer is larger than 64 MiB")
                    raise _unavailable(exc.message, exc)
                self._reader.feed(data)
                yield data
        except (aiohttp.ClientError, OSError) as exc:
            raise _unavailable("The model's answer broke off", exc) from exc

    @property
    def usage(self) -> CallUsage:
        """The usage of the call, once its response was read."""
        told = self._response.headers.get(_PRICE_HEADER, "")
        try:
            dollars = float(told) if told else None
        except ValueError:
            dollars = None
        return self._reader.result(self._upstream, dollars)

    async def _failure(self) -> bytes:
        read = bytearray()
        async for data in self._response.content.iter_any():
            read += data
            if len(read) > _LARGEST_FAILURE_BYTES:
                break
        key, headers = self._upstream.api_key, self._upstream.headers.values()
        text = without_secrets(read.decode(errors="surrogateescape"), filter(None, (key, *headers)))
        return text.encode(errors="surrogateescape")[:_LARGEST_FAILURE_BYTES]


class ModelProxy:
    """Calls models at the hosts that the operator allows; open while the server runs."""

    def __init__(
        self,
        known: Iterable[str],
        *,
        silence_seconds: float,
        own: Iterable[str] = (),
    ) -> None:
        self._known_hosts = known
        self._make_connector = functools.partial(model_connector, own=own)
        self._hosts = tuple(known)
        self._connector = self._make_connector(self._hosts)
        self._silence_seconds = silence_seconds

    @property
    def _reach(self) -> SafeConnector:
        """The connector for the hosts that are known now."""
        if tuple(self._known_hosts) != self._hosts:
            self._hosts = tuple(self._known_hosts)
            self._connector = self._make_connector(self._hosts)
        return self._connector

    async def may_reach(self, base_url: str) -> bool:
        """Return whether the server may call models at a base URL."""
        return await may_ask(base_url, self._reach)

    @contextlib.asynccontextmanager
    async def ask(self, upstream: Upstream, path: str, body: bytes) -> AsyncIterator[ModelResponse]:
        """Call a model; raises ModelUnavailable if it does not respond, or may not be called."""
        # Errors of the reader of the response are not the model's, so they are raised unchanged.
        async with (
            self._reach.session() as session,
            await self._post(session, upstream, path, body) as response,
        ):
            yield ModelResponse(response, upstream, len(body))

    async def _post(
        self, session: aiohttp.ClientSession, upstream: Upstream, path: str, body: bytes
    ) -> aiohttp.ClientResponse:
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=self._silence_seconds
        )
        try:
            url = URL(f"{upstream.base_url}/{path}")
            check_host(self._reach, url)
            response = await session.post(
                url,
                data=body,
                headers=model_headers(upstream.api_key, upstream.headers),
                allow_redirects=False,
                timeout=limits,
            )
        except (aiohttp.ClientError, BadHost, OSError, ValueError) as exc:
            if refusal := refusal_in(exc):
                raise _unavailable(f"The model cannot be asked: {refusal}", exc) from exc
            place = host_of_url(upstream.base_url)
            if isinstance(exc, aiohttp.SocketTimeoutError):
                text = f"The model has said nothing for {self._silence_seconds:g} seconds: {place}"
                raise _unavailable(text, exc, ModelTimedOut) from exc
            raise _unavailable(
                f"Nothing answers at the address of the model: {place}", exc
            ) from exc
        if response.status < HTTPStatus.OK:
            response.close()
            text = f"The model's answer has an invalid status: {response.status}"
            raise _unavailable(text, ValueError(text))
        return response


def _unavailable(
    message: str, exc: Exception, kind: type[ModelUnavailable] = ModelUnavailable
) -> ModelUnavailable:
    error = {"message": message, "type": "server_error", "param": None, "code": "model_unavailable"}
    return kind(message, detail=type(exc).__name__, extra={"error": error})
