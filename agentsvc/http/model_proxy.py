"""Model proxy: OpenAI-compatible endpoints through which sandboxes call language models."""

from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest, ModelBudgetReached, ModelUnavailable
from agentsvc.conversations import PATH
from agentsvc.http.keys import CONVERSATIONS, MODEL_TOKEN, MODEL_TOKENS, MODELS
from agentsvc.http.routes import Described, Routes, Scope
from agentsvc.http.wire import parse_in_thread, read_text
from agentsvc.models import BadModelRequest, ModelResponse, to_upstream_request

_RETRIED: Final = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Error statuses of models after which agents retry by themselves."""

_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of one response that are buffered; a sandbox may have many requests in progress."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a model; all fields but `model` are forwarded."""

    model: str = ""
    """Ignored: the token determines the model"""
    stream: bool | None = None
    """Whether to stream the response as server-sent events; null means no"""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model of a token."""

    id: str
    """Name of the model at the provider"""
    object: str = "model"
    """Always `model`"""
    created: int = 0
    """Always 0, since it is unknown"""
    owned_by: str = "agentsvc"
    """Always `agentsvc`"""


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """A list with the one model of a token."""

    data: list[ModelInfo]
    """The one model"""
    object: str = "list"
    """Always `list`"""


ROUTES: Final = Routes(PATH, scope=Scope.MODEL)

_DESCRIPTION: Final[Described] = {
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
    """List the language model of a sandbox's model token.

    The list has one item, the model of the conversation.
    """
    return ModelList(data=[ModelInfo(id=request[MODEL_TOKEN].upstream.model)])


@ROUTES.add("POST", "/chat/completions", dict[str, Any], **_DESCRIPTION | {"example": _QUESTION})
async def post_completion(request: web.Request) -> web.StreamResponse:
    """Call a conversation's language model from its sandbox, with OpenAI's chat completions API.

    The body is that of OpenAI's chat completions; it is forwarded to the model of the conversation
    with the key its user has stored. The response is the model's, errors included. Its costs count
    toward quotas.
    """
    return await _call_model(request, "chat/completions", wants_usage=True)


@ROUTES.add(
    "POST",
    "/responses",
    dict[str, Any],
    **_DESCRIPTION | {"example": {"model": "scripted", "input": "Go on"}},
)
async def post_response(request: web.Request) -> web.StreamResponse:
    """Call a conversation's language model from its sandbox, with OpenAI's responses API.

    The body is that of OpenAI's responses; it is forwarded, without `background`, to the model of
    the conversation with the key its user has stored. The response is the model's, errors included.
    Its costs count toward quotas.
    """
    return await _call_model(request, "responses", wants_usage=False)


async def _call_model(request: web.Request, path: str, *, wants_usage: bool) -> web.StreamResponse:
    grant, model_tokens = request[MODEL_TOKEN], request.app[MODEL_TOKENS]
    conversations = request.app[CONVERSATIONS]
    try:
        reads = partial(to_upstream_request, model=grant.upstream.model, wants_usage=wants_usage)
        body = await parse_in_thread(await read_text(request), reads)
    except BadModelRequest as exc:
        raise BadRequest(str(exc), extra={"error": {"message": str(exc), "code": None}}) from exc
    try:
        async with (
            model_tokens.calling(grant, len(body)) as call,
            request.app[MODELS].ask(grant.upstream, path, body) as answer,
        ):
            model_tokens.note_status(grant, answer.status)
            if answer.status in _RETRIED:
                await conversations.note_refusal(
                    grant, answer.status, HTTPStatus(answer.status).phrase
                )
            try:
                return await _forward(request, answer)
            finally:
                if answer.is_good:
                    await model_tokens.count(call, answer.usage)
                else:
                    await model_tokens.release(call)
    except ModelUnavailable as exc:
        model_tokens.health.note_answer(grant.conversation_id, grant.upstream, exc.message)
        await conversations.note_refusal(grant, exc.status, exc.message)
        raise


async def _forward(request: web.Request, answer: ModelResponse) -> web.StreamResponse:
    """Forward the model's response, an error unchanged.

    A response that is no stream is buffered, so that it is sent after its usage was counted, unless
    it exceeds `_BUFFER_BYTES`.
    """
    parts, buffered = answer.parts(), bytearray()
    if answer.is_good and not answer.is_stream:
        async for part in parts:
            buffered += part
            if len(buffered) > _BUFFER_BYTES:
                break
        else:
            return web.Response(status=answer.status, headers=answer.headers, body=bytes(buffered))
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    await response.prepare(request)
    if buffered:
        await response.write(bytes(buffered))
        buffered.clear()
    async for part in parts:
        await response.write(part)
    return response
