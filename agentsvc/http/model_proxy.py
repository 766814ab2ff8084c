"""Handlers of the language models that sandboxes ask through this server, as OpenAI's are asked."""

from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, ModelBudgetReached, ModelUnavailable
from agentsvc.conversations import PATH
from agentsvc.http.keys import CONVERSATIONS, MODEL_TOKEN, MODEL_TOKENS, MODELS
from agentsvc.http.routes import Described, Routes, Scope
from agentsvc.http.wire import read_apart, read_text
from agentsvc.models import BadQuestion, ModelAnswer, to_question

_PASSING: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Refusals after which agents ask again by themselves."""

_KEPT_BYTES: Final = 4 * 1024 * 1024
"""How much of an answer is in memory at once; a sandbox may have many on the way."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model, passed on with all it says; the model is always the token's own."""

    model: str = ""
    """Read, and without effect: the model is the token's own"""
    stream: bool | None = None
    """Whether the answer is streamed as server-sent events; null: it is not"""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model that a token is for."""

    id: str
    """Name of the model at its provider"""
    object: str = "model"
    """Always `model`"""
    created: int = 0
    """Always 0: not known"""
    owned_by: str = "agentsvc"
    """Always `agentsvc`"""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The one model that a token is for."""

    data: list[ModelInfo]
    """The one model"""
    object: str = "list"
    """Always `list`"""


ROUTES: Final = Routes(PATH, scope=Scope.MODEL)

_ASKED: Final[Described] = {
    "body": Question,
    "errors": (BadRequest, ModelBudgetReached, ModelUnavailable),
    "is_stream": True,
}
_QUESTION: Final[dict[str, Any]] = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "Go on"}],
}


@ROUTES.add("GET", "/models")
async def get_models(request: web.Request) -> ModelList:
    """Name the language model that the token of a sandbox is for.

    One model: the one of the conversation.
    """
    return ModelList(data=[ModelInfo(id=request[MODEL_TOKEN].upstream.model)])


@ROUTES.add("POST", "/chat/completions", dict[str, Any], **_ASKED | {"example": _QUESTION})
async def post_completion(request: web.Request) -> web.StreamResponse:
    """Ask the language model of a conversation, from its sandbox, with OpenAI's chat completions.

    The body is that of the chat completions of OpenAI, and is passed on to the model of the
    conversation with the key its user has stored. The answer is the model's, a refusal of it
    included. What it costs counts in quotas.
    """
    return await _ask(request, "chat/completions", wants_usage=True)


@ROUTES.add(
    "POST",
    "/responses",
    dict[str, Any],
    **_ASKED | {"example": {"model": "scripted", "input": "Go on"}},
)
async def post_response(request: web.Request) -> web.StreamResponse:
    """Ask the language model of a conversation, from its sandbox, with OpenAI's responses.

    The body is that of the responses of OpenAI, and is passed on, but for `background`, to the
    model of the conversation with the key its user has stored. The answer is the model's, a
    refusal of it included. What it costs counts in quotas.
    """
    return await _ask(request, "responses", wants_usage=False)


async def _ask(request: web.Request, path: str, *, wants_usage: bool) -> web.StreamResponse:
    grant, model_tokens = request[MODEL_TOKEN], request.app[MODEL_TOKENS]
    conversations = request.app[CONVERSATIONS]
    try:
        reads = partial(to_question, model=grant.upstream.model, wants_usage=wants_usage)
        body = await read_apart(await read_text(request), reads)
    except BadQuestion as exc:
        raise BadRequest(str(exc), extra={"error": {"message": str(exc), "code": None}}) from exc
    try:
        async with (
            model_tokens.calling(grant, len(body)) as call,
            request.app[MODELS].ask(grant.upstream, path, body) as answer,
        ):
            model_tokens.note_status(grant, answer.status)
            if answer.status in _PASSING:
                await conversations.note_refusal(
                    grant, answer.status, HTTPStatus(answer.status).phrase
                )
            try:
                return await _pass_on(request, answer)
            finally:
                if answer.is_good:
                    await model_tokens.count(call, answer.usage)
                else:
                    await model_tokens.release(call)
    except ModelUnavailable as exc:
        model_tokens.health.note_answer(grant.conversation_id, grant.upstream, exc.message)
        await conversations.note_refusal(grant, exc.status, exc.message)
        raise


async def _pass_on(request: web.Request, answer: ModelAnswer) -> web.StreamResponse:
    """Send an answer as it comes, a refusal as the model words it.

    One that is whole is sent when it has been counted, unless it is too large to be kept so long.
    """
    parts, kept = answer.parts(), bytearray()
    if answer.is_good and not answer.is_stream:
        async for part in parts:
            kept += part
            if len(kept) > _KEPT_BYTES:
                break
        else:
            return web.Response(status=answer.status, headers=answer.headers, body=bytes(kept))
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    await response.prepare(request)
    if kept:
        await response.write(bytes(kept))
        kept.clear()
    async for part in parts:
        await response.write(part)
    return response
