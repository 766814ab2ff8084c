"""Passing one HTTP request on to a sandbox, and its answer back, as they come.

Nothing is kept but what is on its way: each side waits for the other one to take what it sent.
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
from agentsvc.http.server.connections import ask_for_body

CLIENT_GONE: Final = 499
"""The status in the log of a request whose client did not wait for the answer."""

_EVENT_STREAM: Final = "text/event-stream"
_READ_BYTES: Final = 64 * 1024 * 1024
"""How long an answer may be that has to be changed."""


async def forward(pool: Pool, request: web.Request, target: ProxyTarget) -> web.StreamResponse:
    """Return what the sandbox answers, sent already; raises PortUnavailable, MalformedBody.

    Connections are kept in the pool for the next request.
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
    connection = await _ask(pool, request, target, head + first, body)
    try:
        if body.is_sent:
            response = await _answer(request, target, connection, life)
        else:
            response = await _answer_meanwhile(request, target, connection, life, body)
    except ConnectionBroken as exc:
        raise body.failure or unavailable(exc.__cause__ or exc) from exc
    finally:
        # What is left of the answer, or of the body, is wanted by nobody.
        if connection.finish(is_sent=body.is_sent):
            pool.put(target.address, connection)
    return response


async def _ask(
    pool: Pool, request: web.Request, target: ProxyTarget, raw: bytes, body: RequestBody
) -> PooledConnection:
    """Return a connection on which the request was begun; raises PortUnavailable."""
    is_repeatable = request.method in (hdrs.METH_GET, hdrs.METH_HEAD) and not body.exists
    answers_head = request.method == hdrs.METH_HEAD
    try:
        connection = pool.find(target.address, is_safe=is_repeatable)
        if connection is None:
            connection = await pool.connect(target.address, target.confirm)
        connection.ask(raw, answers_head=answers_head, on_continue=partial(ask_for_body, request))
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


async def _answer_meanwhile(
    request: web.Request,
    target: ProxyTarget,
    connection: PooledConnection,
    life: asyncio.Timeout,
    body: RequestBody,
) -> web.StreamResponse:
    """Pass the answer on while the body is still on its way."""
    failure: Exception | None = None
    response = web.StreamResponse()
    async with asyncio.TaskGroup() as group:
        pump = group.create_task(body.pump(connection))
        try:
            response = await _answer(request, target, connection, life)
        except (AgentsvcError, ConnectionBroken, ConnectionError) as exc:
            # The group would wrap it.
            failure = exc
        finally:
            pump.cancel()
    if failure is not None:
        raise failure
    return response


async def _answer(
    request: web.Request, target: ProxyTarget, connection: PooledConnection, life: asyncio.Timeout
) -> web.StreamResponse:
    head = await connection.head()
    if target.reader is not None and _is_json(head):
        return await _answer_older(request, target, connection, target.reader)
    response = _begin(target, head)
    request[IS_FORWARDED] = True
    await response.prepare(request)
    try:
        if _is_endless(head):
            with until_stop(request, life):
                await _copy(request, response, connection)
        else:
            await _copy(request, response, connection)
    except ConnectionBroken as exc:
        # Too late for another answer: that the connection ends early says it was not all.
        raise ConnectionResetError("the sandbox broke off its answer") from exc
    return response


def _begin(target: ProxyTarget, head: ResponseHead) -> web.StreamResponse:
    """Return the answer, without its body; raises PortUnavailable for one that cannot be given."""
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


async def _answer_older(
    request: web.Request, target: ProxyTarget, connection: PooledConnection, reader: EventReader
) -> web.Response:
    """Return the answer, all of it, as the client reads it; raises PortUnavailable, ConnectionBroken."""
    parts: list[bytes] = []
    left = _READ_BYTES
    while part := await connection.read():
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise PortUnavailable("The answer is too long for this version of the client")
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
        # The body often comes a moment after the head.
        await asyncio.sleep(0)
    if not connection.has_more:
        request.writer.send_headers()
    if hdrs.CONTENT_LENGTH in response.headers and not connection.is_done:
        # What needs no framing needs no writer.
        await response.write(connection.read_now())
        await connection.pour(ClientBody(request))
    while not connection.is_done:
        await response.write(await connection.read())
    await _finish(request, response, connection)


async def _finish(
    request: web.Request, response: web.StreamResponse, connection: PooledConnection
) -> None:
    """Pass on what is left, and the trailers if there are any."""
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
    """Return what is told where a port cannot be reached."""
    name = type(exc).__name__
    return PortUnavailable("Nothing answers at this port of the sandbox", detail=name)
