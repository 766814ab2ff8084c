"""Forwards an HTTP request to a sandbox and streams the response back.

Bodies are not buffered: each side is read only as fast as the other side accepts.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import hdrs, web
from aiohttp.http import StreamWriter

from agentsvc.base import AgentsvcError, PortUnavailable
from agentsvc.http.gateway.connection_pool import (
    ClientBody,
    ConnectionBroken,
    Pool,
    PooledConnection,
)
from agentsvc.http.gateway.headers import passing_trailers, to_client, to_lines
from agentsvc.http.gateway.http_responses import ResponseHead
from agentsvc.http.gateway.request_body import LAST_CHUNK, RequestBody
from agentsvc.http.gateway.request_lifetime import until_stop, with_client
from agentsvc.http.gateway.target import ProxyTarget, head_of
from agentsvc.http.keys import IS_FORWARDED
from agentsvc.http.sdk_versions import EventReader
from agentsvc.http.server.connections import send_continue

CLIENT_GONE: Final = 499
"""Logged status of a request whose client disconnected before the response."""

_EVENT_STREAM: Final = "text/event-stream"
_CONVERTED_BYTES: Final = 64 * 1024 * 1024
"""Largest response that can be converted for an older client."""


async def forward(pool: Pool, request: web.Request, target: ProxyTarget) -> web.StreamResponse:
    """Forward a request and return the response, already sent if it streams.

    Raises PortUnavailable and MalformedBody.
    """
    try:
        async with with_client(request) as life:
            return await _exchange(pool, request, target, life)
    except ConnectionError:
        if request.transport is not None or request.get(IS_FORWARDED, False):
            raise
        return web.Response(status=CLIENT_GONE)


async def _exchange(
    pool: Pool, request: web.Request, target: ProxyTarget, life: asyncio.Timeout
) -> web.StreamResponse:
    body = RequestBody(request)
    if target.edit_body is not None:
        await body.edit(target.edit_body)
    head = head_of(request.method, target, (*target.headers.items(), *body.framing()))
    first = body.take() if body.is_here else b""
    connection = await _send_request(pool, request, target, head + first, body)
    try:
        if body.is_sent:
            response = await _respond(request, target, connection, life)
        else:
            response = await _respond_early(request, target, connection, life, body)
    except ConnectionBroken as exc:
        raise body.failure or unavailable(exc.__cause__ or exc) from exc
    finally:
        # A connection with an unread response or an unsent body is closed.
        if connection.finish(is_sent=body.is_sent):
            pool.put(target.address, connection)
    return response


async def _send_request(
    pool: Pool, request: web.Request, target: ProxyTarget, raw: bytes, body: RequestBody
) -> PooledConnection:
    """Send the head of the request on a pooled or new connection; raises PortUnavailable.

    A safe request is repeated on a new connection if a reused one fails before any response.
    """
    is_repeatable = request.method in (hdrs.METH_GET, hdrs.METH_HEAD) and not body.exists
    answers_head = request.method == hdrs.METH_HEAD
    try:
        connection = pool.find(target.address, is_safe=is_repeatable)
        if connection is None:
            connection = await pool.connect(target.address, target.confirm)
        connection.ask(raw, answers_head=answers_head, on_continue=partial(send_continue, request))
        if not (connection.is_used and is_repeatable):
            return connection
        try:
            await connection.head()
        except ConnectionBroken:
            if connection.has_answered:
                raise
            connection = await pool.connect(target.address, target.confirm)
            connection.ask(raw, answers_head=answers_head)
        except asyncio.CancelledError:
            connection.finish(is_sent=False)
            raise
    except ConnectionBroken as exc:
        raise unavailable(exc.__cause__ or exc) from exc
    return connection


async def _respond_early(
    request: web.Request,
    target: ProxyTarget,
    connection: PooledConnection,
    life: asyncio.Timeout,
    body: RequestBody,
) -> web.StreamResponse:
    """Forward the response while the request body is still being sent."""
    failure: Exception | None = None
    response = web.StreamResponse()
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(body.pump(connection))
        try:
            response = await _respond(request, target, connection, life)
        except (AgentsvcError, ConnectionBroken, ConnectionError) as exc:
            # The task group would wrap it in an ExceptionGroup.
            failure = exc
        finally:
            pump.cancel()
    if failure is not None:
        raise failure
    return response


async def _respond(
    request: web.Request, target: ProxyTarget, connection: PooledConnection, life: asyncio.Timeout
) -> web.StreamResponse:
    head = await connection.head()
    if target.reader is not None and _is_json(head):
        return await _convert(request, target, connection, target.reader)
    response = _to_response(target, head)
    request[IS_FORWARDED] = True
    await response.prepare(request)
    try:
        if _is_endless(head):
            with until_stop(request, life):
                await _copy(request, response, connection)
        else:
            await _copy(request, response, connection)
    except ConnectionBroken as exc:
        # The head is sent: closing the connection early marks the body as incomplete.
        raise ConnectionResetError("the sandbox aborted its response") from exc
    return response


def _to_response(target: ProxyTarget, head: ResponseHead) -> web.StreamResponse:
    """Create the response without its body; raises PortUnavailable for an upgrade."""
    if head.status < web.HTTPOk.status_code:
        raise PortUnavailable("The server in the sandbox does not answer in HTTP")
    response = web.StreamResponse(
        status=head.status, reason=head.reason, headers=to_client(head.headers, target.confines)
    )
    response.headers.extend(target.more_headers)
    if hdrs.CONTENT_LENGTH in head.headers:
        response.content_length = int(head.headers[hdrs.CONTENT_LENGTH])
    return response


def _is_json(head: ResponseHead) -> bool:
    kind = head.headers.get(hdrs.CONTENT_TYPE, "").lower()
    is_plain = hdrs.CONTENT_ENCODING not in head.headers
    return is_plain and head.status == HTTPStatus.OK and kind.startswith("application/json")


async def _convert(
    request: web.Request, target: ProxyTarget, connection: PooledConnection, reader: EventReader
) -> web.Response:
    """Read the whole response and convert it for an older client.

    Raises PortUnavailable and ConnectionBroken.
    """
    parts: list[bytes] = []
    left = _CONVERTED_BYTES
    while part := await connection.read():
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise PortUnavailable("The response is too large for this client version")
    headers = to_client((await connection.head()).headers, target.confines)
    request[IS_FORWARDED] = True
    body = await asyncio.to_thread(reader.answer, b"".join(parts))
    return web.Response(headers=headers, body=body)


def _is_endless(head: ResponseHead) -> bool:
    return head.headers.get(hdrs.CONTENT_TYPE, "").lower().startswith(_EVENT_STREAM)


async def _copy(
    request: web.Request, response: web.StreamResponse, connection: PooledConnection
) -> None:
    if not connection.has_more:
        # The body often arrives just after the head: then both are sent in one packet.
        await asyncio.sleep(0)
    if not connection.has_more:
        request.writer.send_headers()
    if hdrs.CONTENT_LENGTH in response.headers and not connection.is_done:
        # A body with a known length needs no framing, so it bypasses aiohttp's writer.
        await response.write(connection.read_now())
        await connection.pour(ClientBody(request))
    while not connection.is_done:
        await response.write(await connection.read())
    await _finish(request, response, connection)


async def _finish(
    request: web.Request, response: web.StreamResponse, connection: PooledConnection
) -> None:
    """Send the rest of the body, and the trailers of a chunked response."""
    trailers = passing_trailers(connection.trailers)
    rest = connection.read_now()
    writer = request.writer
    if trailers and hdrs.TRANSFER_ENCODING in response.headers and isinstance(writer, StreamWriter):
        await response.write(rest)
        writer.send_headers()
        writer.chunked = False
        rest = LAST_CHUNK + to_lines(trailers) + b"\r\n"
    await response.write_eof(rest)


def unavailable(exc: BaseException) -> PortUnavailable:
    """Return the error for a port that cannot be reached; the detail is the exception's name."""
    name = type(exc).__name__
    return PortUnavailable("Nothing answers at this port of the sandbox", detail=name)
