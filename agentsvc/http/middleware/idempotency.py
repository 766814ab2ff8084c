"""Executes a request with an `Idempotency-Key` only once, and replays its response to repeats.

The header follows the draft of the IETF's HTTPAPI group; quotes around its value are optional.
"""

import hashlib
import re
from typing import Any, Final

from aiohttp import web
from multidict import istr

from agentsvc.accounts import IdempotencySlot, StoredAnswer
from agentsvc.base import AgentsvcError, BadRequest
from agentsvc.http.keys import IDEMPOTENCY, user_of
from agentsvc.http.routes import Handler, Route, route_of, takes_repeats
from agentsvc.http.wire import BODY, ON_STREAMED, read_text
from agentsvc.storage import Transaction, recording_effects

HEADER: Final = istr("Idempotency-Key")
REPLAYED: Final = "Idempotency-Replayed"

_MAX_KEY_CHARS: Final = 255
_KEY: Final = re.compile(r"[\x20-\x7e]+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


@web.middleware
async def answer_once(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Replay the stored response of a repeated request; execute a new one and store its response.

    Raises BadRequest for an invalid key, RequestInProgress while the first request is executed, and
    IdempotencyKeyReused if the key was used with another request.
    """
    route = route_of(request)
    if HEADER not in request.headers or route is None or not takes_repeats(route):
        return await handler(request)
    slot = await _slot_of(request, route)
    store = request.app[IDEMPOTENCY]
    stored = await store.find(slot)
    if stored is not None and stored.is_final:
        return _replay(stored)
    with store.claim(slot):
        # The first request may have finished since the first look-up.
        stored = await store.find(slot)
        if stored is not None and stored.is_final:
            return _replay(stored)
        execution = _Execution(request, route, slot)
        if stored is not None and route.goes_on is not None:
            return await route.goes_on(request, stored.body)
        await store.check_room(slot.user_id)
        return await execution.do(handler)


def to_key(text: str) -> str:
    """Parse the key in a header; raises BadRequest."""
    stripped = text.strip()
    if stripped.startswith('"'):
        quoted = _QUOTED.fullmatch(stripped)
        stripped = re.sub(r"\\(.)", r"\1", quoted.group(1)) if quoted else ""
    if len(stripped) > _MAX_KEY_CHARS or not _KEY.fullmatch(stripped):
        raise BadRequest(
            f"Send one {HEADER} header of 1 to {_MAX_KEY_CHARS} printable ASCII characters"
        )
    return stripped


class _Execution:
    """The execution of a request with a key, which stores its response."""

    def __init__(self, request: web.Request, route: Route, slot: IdempotencySlot) -> None:
        self._request = request
        self._route = route
        self._slot = slot
        self._store = request.app[IDEMPOTENCY]
        self._stored: StoredAnswer | None = None
        self._is_over = False
        if route.is_stream:
            request[ON_STREAMED] = self._end_stream

    async def do(self, handler: Handler) -> web.StreamResponse:
        """Call the handler; if its effect was stored, respond with the stored response."""
        try:
            with recording_effects(self._note):
                response = await handler(self._request)
        except AgentsvcError:
            if self._stored is None or self._route.is_stream:
                raise
            return _to_response(self._stored)
        finally:
            self._is_over = True
        if self._route.is_stream or response.status >= web.HTTPBadRequest.status_code:
            return response
        if self._stored is not None:
            return _to_response(self._stored)
        stored = StoredAnswer(
            status=response.status, media=response.content_type, body=_body_of(response)
        )
        await self._store.keep(self._slot, stored)
        return response

    async def _end_stream(self, last: bytes) -> None:
        stored = StoredAnswer(
            status=self._route.status, media=self._route.media, body=b"[" + last + b"]"
        )
        await self._store.keep(self._slot, stored)

    async def _note(self, tx: Transaction, created: object) -> None:
        """Store the response in the transaction of the route's effect; ignore other objects."""
        effect = self._route.effect
        is_it = effect is not None and isinstance(created, effect.kind)
        if effect is None or not is_it or self._is_over or self._stored is not None:
            return
        answer = effect.answer(self._request, created)
        stored = StoredAnswer(
            status=answer.status,
            media=answer.content_type,
            body=_body_of(answer),
            is_final=not self._route.is_stream,
        )
        await self._store.keep_in(tx, self._slot, stored)
        tx.after_commit(lambda: self._set(stored))

    def _set(self, stored: StoredAnswer) -> None:
        self._stored = stored


def _replay(stored: StoredAnswer) -> web.Response:
    response = _to_response(stored)
    response.headers[REPLAYED] = "true"
    return response


def _to_response(stored: StoredAnswer) -> web.Response:
    return web.Response(status=stored.status, body=stored.body, content_type=stored.media)


def _body_of(response: web.StreamResponse) -> bytes:
    body: Any = response.body if isinstance(response, web.Response) else None
    return body if isinstance(body, bytes) else b""


async def _slot_of(request: web.Request, route: Route) -> IdempotencySlot:
    given = request.headers.getall(HEADER)
    key = to_key(given[0] if len(given) == 1 else "")
    if request.can_read_body:
        request[BODY] = await read_text(request)
    parts = (request.method, request.rel_url.raw_path_qs, request.content_type)
    fingerprint = hashlib.sha256("\n".join(parts).encode() + b"\n" + request.get(BODY, b""))
    return IdempotencySlot(
        user_id=user_of(request),
        operation=f"{route.method} {route.path}",
        key_hash=hashlib.sha256(key.encode()).digest(),
        fingerprint=fingerprint.digest(),
    )
