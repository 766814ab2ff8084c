"""Does a request that carries an `Idempotency-Key` once, however often it is sent.

The header is that of the draft of the IETF's HTTPAPI group, its value in quotes or bare.
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
from agentsvc.storage import Transaction, watched_by

HEADER: Final = istr("Idempotency-Key")
REPLAYED: Final = "Idempotency-Replayed"

_LONGEST_KEY: Final = 255
_KEY: Final = re.compile(r"[\x20-\x7e]+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


@web.middleware
async def answer_once(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a repeat as the first was answered, without doing it again.

    Raises BadRequest for what is no key, RequestInProgress while the first is being done, and
    IdempotencyKeyReused where the key came with something else.
    """
    route = route_of(request)
    if HEADER not in request.headers or route is None or not takes_repeats(route):
        return await handler(request)
    slot = await _slot_of(request, route)
    repeats = request.app[IDEMPOTENCY]
    kept = await repeats.find(slot)
    if kept is not None and kept.is_final:
        return _again(kept)
    with repeats.claim(slot):
        # It may have been done since.
        kept = await repeats.find(slot)
        if kept is not None and kept.is_final:
            return _again(kept)
        watch = _Watch(request, route, slot)
        if kept is not None and route.goes_on is not None:
            return await route.goes_on(request, kept.body)
        await repeats.check_room(slot.user_id)
        return await watch.do(handler)


def to_key(text: str) -> str:
    """Return the key in a header; raises BadRequest for what is none."""
    stripped = text.strip()
    if stripped.startswith('"'):
        quoted = _QUOTED.fullmatch(stripped)
        stripped = re.sub(r"\\(.)", r"\1", quoted.group(1)) if quoted else ""
    if len(stripped) > _LONGEST_KEY or not _KEY.fullmatch(stripped):
        raise BadRequest(
            f"The {HEADER} should be 1 to {_LONGEST_KEY} printable ASCII characters, once"
        )
    return stripped


class _Watch:
    """One request with a key, from its beginning to its answer."""

    def __init__(self, request: web.Request, route: Route, slot: IdempotencySlot) -> None:
        self._request = request
        self._route = route
        self._slot = slot
        self._repeats = request.app[IDEMPOTENCY]
        self._stored: StoredAnswer | None = None
        self._is_over = False
        if route.is_stream:
            request[ON_STREAMED] = self._end_stream

    async def do(self, handler: Handler) -> web.StreamResponse:
        """Do what is asked for; what was done is answered as it is stored."""
        try:
            with watched_by(self._note):
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
        kept = StoredAnswer(
            status=response.status, media=response.content_type, body=_body_of(response)
        )
        await self._repeats.keep(self._slot, kept)
        return response

    async def _end_stream(self, last: bytes) -> None:
        kept = StoredAnswer(
            status=self._route.status, media=self._route.media, body=b"[" + last + b"]"
        )
        await self._repeats.keep(self._slot, kept)

    async def _note(self, tx: Transaction, made: object) -> None:
        """Store the answer with what the request has made, if it is that."""
        effect = self._route.effect
        is_it = effect is not None and isinstance(made, effect.kind)
        if effect is None or not is_it or self._is_over or self._stored is not None:
            return
        answer = effect.answer(self._request, made)
        kept = StoredAnswer(
            status=answer.status,
            media=answer.content_type,
            body=_body_of(answer),
            is_final=not self._route.is_stream,
        )
        await self._repeats.keep_in(tx, self._slot, kept)
        tx.after_commit(lambda: self._set(kept))

    def _set(self, kept: StoredAnswer) -> None:
        self._stored = kept


def _again(kept: StoredAnswer) -> web.Response:
    response = _to_response(kept)
    response.headers[REPLAYED] = "true"
    return response


def _to_response(kept: StoredAnswer) -> web.Response:
    return web.Response(status=kept.status, body=kept.body, content_type=kept.media)


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
