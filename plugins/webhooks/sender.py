"""Sends one request to a receiver: to a checked address, with limits of time and of the response."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from aiohttp import hdrs
from yarl import URL

from agentsvc.base import InvalidRequest, NotAllowed, values
from agentsvc.extension.network import Lookup, SafeConnector, refusal_in

from .targets import check_url

ANSWER_MAX: Final = 16 * 1024
"""Maximum size of a response; its content is discarded."""

_LONGEST_REASON: Final = 300
_WAIT_DIGITS: Final = 9
_REFUSAL: Final = "the name leads to an address that is not public"


class DeliveryResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an attempt; `status` is that of the receiver's response, if any.

    `wait_seconds` is the time that the receiver requested until the next attempt.
    """

    is_delivered: bool
    status: int | None = None
    reason: str = ""
    wait_seconds: float = 0.0

    @property
    def is_gone(self) -> bool:
        """Whether the receiver responded that it wants no more deliveries."""
        return self.status == HTTPStatus.GONE


class Sender:
    """Sends deliveries to receivers; close it at the end."""

    def __init__(
        self,
        *,
        time_limit: float,
        allows_private: bool,
        most: int,
        own: Iterable[str] = (),
        lookup: Lookup | None = None,
    ) -> None:
        self._time_limit = time_limit
        self._allows_private = allows_private
        self._max = most
        self._reach = SafeConnector(
            anywhere=allows_private, own=own, refusal=_REFUSAL, lookup=lookup
        )
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close every connection; safe to call twice."""
        if self._session is not None:
            await self._session.close()

    async def send(self, url: str, body: bytes, headers: Mapping[str, str]) -> DeliveryResult:
        """Send one body and return the result; failures of the receiver do not raise."""
        try:
            check_url(url, allows_private=self._allows_private)
            async with asyncio.timeout(self._time_limit):
                return await self._post(url, body, headers)
        except (InvalidRequest, NotAllowed) as exc:
            return _failure(exc.message)
        except TimeoutError:
            return _failure("the receiver took too long to answer")
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return _failure(_reason(exc))

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> DeliveryResult:
        if self._session is None:
            self._session = self._reach.session(limit=self._max, keepalive_seconds=5)
        sent = {"Content-Type": "application/json", "User-Agent": "agentsvc", **headers}
        async with self._session.post(
            URL(url), data=body, headers=sent, allow_redirects=False
        ) as response:
            read = 0
            async for chunk in response.content.iter_any():
                read += len(chunk)
                if read > ANSWER_MAX:
                    response.close()
                    break
            retry_after = response.headers.get(hdrs.RETRY_AFTER, "")
            return _outcome(response.status, retry_after)


def wait_seconds(status: int, retry_after: str, now: datetime) -> float:
    """Parse a `Retry-After` header of a 429 or 503 response; 0 without a valid one."""
    text = retry_after.strip()
    if status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        return 0.0
    if text.isascii() and text.isdigit():
        return float(text[:_WAIT_DIGITS])
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return 0.0
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _outcome(status: int, retry_after: str) -> DeliveryResult:
    if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
        return DeliveryResult(is_delivered=True, status=status)
    is_redirect = status < HTTPStatus.BAD_REQUEST
    more = "; redirects are not followed" if is_redirect else ""
    return DeliveryResult(
        is_delivered=False,
        status=status,
        reason=f"the receiver answered {status}{more}",
        wait_seconds=wait_seconds(status, retry_after, values.now()),
    )


def _failure(reason: str) -> DeliveryResult:
    return DeliveryResult(is_delivered=False, reason=reason[:_LONGEST_REASON])


def _reason(exc: Exception) -> str:
    if refusal := refusal_in(exc):
        return str(refusal)
    inner = exc.os_error if isinstance(exc, aiohttp.ClientConnectorError) else exc
    return f"the receiver cannot be reached: {str(inner) or type(inner).__name__}"
