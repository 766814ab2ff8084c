"""Tests a language model with one request from the server, and explains a failure in plain words.

One request of OpenAI's chat completions, to hosts that sandboxes may call as well: public
addresses, and the hosts that the operator lists. Models with other APIs are not tested.
"""

import asyncio
import ssl
from collections.abc import Iterable
from enum import StrEnum
from http import HTTPStatus
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from agentsvc.agentserver import AddressNotAllowed, Lookup, SafeConnector, refusal_in
from agentsvc.base import decode_or_none, without_secrets
from agentsvc.domain import Llm, secrets_of
from agentsvc.models.access import check_host, model_connector, model_headers
from agentsvc.models.hosts import BASES, OWN_SERVERS, host_of_url, provider_of
from agentsvc.plugin.egress import BadHost

_MAX_RESPONSE_BYTES: Final = 256 * 1024
_MAX_MESSAGE_CHARS: Final = 500
_TIME_LIMIT: Final = 30.0
_PROMPT: Final = "This is a test of the connection. Answer with the one word OK."

_OTHER_APIS: Final = frozenset({"anthropic", "gemini"})
"""Providers whose own API, which a base URL refers to, is a different one."""


class CheckOutcome(StrEnum):
    """The result of testing a model."""

    ANSWERS = "answers"
    """The model answered"""
    FAILED = "failed"
    """The model was called and did not answer as a model does"""
    UNTESTED = "untested"
    """The model was not called; agents may reach it all the same."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The result of testing a model, for the user, with the provider's own error message."""

    outcome: CheckOutcome
    """The result"""
    message: str
    """The result in words for the user"""
    status: int | None = None
    """HTTP status of the provider; null if it was not reached or not asked"""
    said: str = ""
    """Error message of the provider, truncated if it is long; empty if there is none"""
    host: str = ""
    """Host and port that an administrator may add to `model-hosts` to allow the test; empty if they are
    not the cause"""


async def check_model(
    llm: Llm,
    known: Iterable[str],
    *,
    own: Iterable[str] = (),
    time_limit: float = _TIME_LIMIT,
    lookup: Lookup | None = None,
) -> Checked:
    """Call a model once; never raises for its settings or its response.

    `known` hosts, in the format of `allow_hosts`, may have any address, others only public
    addresses.
    """
    found = _endpoint(llm)
    if isinstance(found, Checked):
        return found
    try:
        reach = model_connector(known, own=own, lookup=lookup)
        check_host(reach, found)
        async with asyncio.timeout(time_limit):
            return await _ask(llm, found, reach)
    except AddressNotAllowed as exc:
        return msgspec.structs.replace(
            _untested(f"It cannot be tested here: {exc}"), host=host_of_url(str(found))
        )
    except BadHost as exc:
        return _failed(f"The host of the base URL is invalid: {exc}.")
    except TimeoutError:
        return _failed(f"No answer came within {time_limit:g} seconds.")
    except (aiohttp.ClientError, OSError, ValueError) as exc:
        return _unreached(exc)


def _endpoint(llm: Llm) -> URL | Checked:
    """Return the URL to call, or the reason why the model cannot be tested."""
    model, base = (llm.model or "").strip(), (llm.base_url or "").strip()
    provider = provider_of(model)
    if not model:
        return _untested("No model is named in the settings.")
    if not provider:
        return _failed(
            "The name lacks its provider. Write openai/NAME for a server of your own with an"
            " OpenAI-compatible API."
        )
    is_known = provider in OWN_SERVERS or (provider in BASES and provider not in _OTHER_APIS)
    if not (is_known if base else provider in BASES):
        return _untested(
            f"Models of `{provider}`{' behind a base URL' if base else ''} cannot be tested here:"
            " the server tests only OpenAI-compatible APIs. The first conversation will show."
        )
    return _to_url(base or BASES[provider]) or _failed(
        "The base URL is invalid: it must begin with https:// or http:// and a host."
    )


def _to_url(base: str) -> URL | None:
    try:
        url = URL(base)
        is_url = url.scheme in ("http", "https") and url.raw_host and url.user is None
        path = f"{url.raw_path.rstrip('/')}/chat/completions"
        return url.with_path(path, encoded=True) if is_url else None
    except ValueError:
        return None


async def _ask(llm: Llm, url: URL, reach: SafeConnector) -> Checked:
    name = (llm.model or "").strip()
    body = {
        "model": name.partition("/")[2] or name,
        "messages": [{"role": "user", "content": _PROMPT}],
    }
    headers = model_headers(llm.api_key, llm.options.extra_headers or {})
    async with (
        reach.session() as session,
        session.post(
            url, data=msgspec.json.encode(body), headers=headers, allow_redirects=False
        ) as response,
    ):
        text = await _read(response)
        return _judge(response.status, text, llm)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > _MAX_RESPONSE_BYTES:
            raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(body)


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | int | None = None
    type: str | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: list[msgspec.Raw] = []


class _Failure(msgspec.Struct, frozen=True):
    error: _Error | str | None = None
    detail: str | None = None
    message: str | None = None


def _judge(status: int, body: bytes, llm: Llm) -> Checked:
    """Interpret the response of a model."""
    if status == HTTPStatus.OK:
        if _is_completion(body):
            return Checked(
                outcome=CheckOutcome.ANSWERS, message="The model answers.", status=status
            )
        return _failed(
            "Something answers at that address, but not as OpenAI's models do. Check the base URL;"
            " it often ends with /v1.",
            status=status,
        )
    said, code = _read_failure(body)
    # Masked before it is cut, so that no part of a key is left at the end.
    said = without_secrets(said, secrets_of(llm))[:_MAX_MESSAGE_CHARS]
    return _failed(_explain(status, f"{code} {said}".lower(), llm), status=status, said=said)


def _is_completion(body: bytes) -> bool:
    answer = decode_or_none(body, _Answer)
    return answer is not None and len(answer.choices) > 0


def _read_failure(body: bytes) -> tuple[str, str]:
    """Return a provider's error message and code."""
    found = decode_or_none(body, _Failure)
    if found is None:
        return "", ""
    error = found.error
    if isinstance(error, _Error):
        return error.message, f"{error.code or ''} {error.type or ''}"
    return error or found.detail or found.message or "", ""


_NO_MODEL: Final = (
    "There is no such model at that address. Check its name, and the base URL if there is one;"
    " it often ends with /v1."
)
_KEY_REFUSED: Final = (
    "The provider does not accept the key. Copy it once more, and check that it belongs to this"
    " provider."
)
_NO_KEY: Final = "The provider wants a key, and none is stored."
_NO_KEY_IN_HEADERS: Final = (
    "The provider wants a key. None is stored, and it takes no header in `extra_headers` for one."
)
_NO_CREDIT: Final = "The account at the provider has no credit left, or is over its quota."
_EXPLAINED: Final = {
    402: _NO_CREDIT,
    404: _NO_MODEL,
    429: "The provider takes no more requests at the moment. Wait a minute, and test once more.",
}


def _explain(status: int, said: str, llm: Llm) -> str:
    if "insufficient_quota" in said or "credit" in said:
        return _NO_CREDIT
    if status in (401, 403) or "api key" in said or "api_key" in said:
        without_key = _NO_KEY_IN_HEADERS if llm.options.extra_headers else _NO_KEY
        return _KEY_REFUSED if llm.api_key else without_key
    if status in (400, 422) and "model" in said:
        return _NO_MODEL
    return _EXPLAINED.get(status) or _explain_other(status)


def _explain_other(status: int) -> str:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return f"The provider has a fault of its own: it answered {status}. Test again later."
    if status < HTTPStatus.BAD_REQUEST:
        return f"The base URL leads elsewhere: the answer was {status}. Use where it leads to."
    return f"The provider does not take the request: it answered {status}."


def _unreached(exc: Exception) -> Checked:
    is_tls = isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError)
    inner = exc
    if isinstance(exc, aiohttp.ClientConnectorError) and not is_tls:
        inner = exc.os_error
    if refusal := refusal_in(exc):
        return _untested(f"It cannot be tested here: {refusal}")
    if is_tls:
        message = "The certificate at that address is not accepted, or it does not speak TLS."
    elif isinstance(inner, ValueError):
        message = "It cannot be called. Check the key and the base URL for stray characters."
    else:
        message = "Nothing answers at that address. Check the base URL, and the server's network."
    return _failed(message, said=(str(inner) or type(inner).__name__)[:_MAX_MESSAGE_CHARS])


def _failed(message: str, *, status: int | None = None, said: str = "") -> Checked:
    return Checked(outcome=CheckOutcome.FAILED, message=message, status=status, said=said)


def _untested(message: str) -> Checked:
    return Checked(outcome=CheckOutcome.UNTESTED, message=message)
