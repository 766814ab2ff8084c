"""OpenAI-compatible models: request conversion, token usage and cost. Pure."""

from typing import Annotated, Final

import msgspec
from msgspec import Raw

from agentsvc.base import Secret, decode_or_none, exceeds_value_limit
from agentsvc.domain import Llm, without_secret_options
from agentsvc.models.hosts import OWN_SERVERS, provider_of

OPENAI_URL: Final = "https://api.openai.com/v1"
MAX_USED: Final = 2**40
"""More tokens, or dollars, than any conversation uses: larger reported values are ignored."""

_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
_BYTES_OF_TOKEN: Final = 4
"""The approximate length of a token."""
_MIN_BYTES_OF_TOKEN: Final = 3


class Upstream(msgspec.Struct, frozen=True, kw_only=True):
    """The address and credentials of a model."""

    model: str
    """The name of the model there, without the provider."""
    base_url: str
    api_key: Secret | None
    headers: dict[str, Secret] = {}
    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None


class CallUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of one call; the dollars are None if the price is unknown."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = None


class BadModelRequest(ValueError):
    """A request to a model that cannot be forwarded; the message says why."""


def upstream_of(llm: Llm) -> Upstream | None:
    """Return the upstream of a model, or None if its API is not OpenAI-compatible."""
    model, base = (llm.model or "").strip(), (llm.base_url or "").strip()
    provider = provider_of(model)
    if provider != "openai" and not (provider in OWN_SERVERS and base):
        return None
    options = llm.options
    if options.api_version is not None:
        # Only Azure has API versions, and its paths differ.
        return None
    return Upstream(
        model=model.removeprefix(f"{provider}/"),
        base_url=(base or OPENAI_URL).rstrip("/"),
        api_key=llm.api_key,
        headers=dict(options.extra_headers or {}),
        input_cost_per_token=options.input_cost_per_token,
        output_cost_per_token=options.output_cost_per_token,
    )


def through(llm: Llm, *, base_url: str, token: Secret) -> Llm:
    """Return a model as a sandbox sees it: with this URL, and a token as its only secret."""
    plain = without_secret_options(llm)
    return msgspec.structs.replace(plain, api_key=token, base_url=base_url)


def to_upstream_request(body: bytes, model: str, *, wants_usage: bool) -> bytes:
    """Return a request to a model with its model name replaced; raises BadModelRequest.

    With `wants_usage` a stream is asked to report its usage at the end.
    """
    if exceeds_value_limit(body):
        raise BadModelRequest("The body has too many values")
    try:
        fields = _request_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise BadModelRequest("The body must be a JSON object") from exc
    fields["model"] = Raw(msgspec.json.encode(model))
    # The usage of a response that continues in the background could not be measured.
    fields.pop("background", None)
    if wants_usage and bytes(fields.get("stream", b"")) == b"true":
        fields["stream_options"] = Raw(_with_usage(fields.get("stream_options")))
    return msgspec.json.encode(fields)


def estimate_usage(upstream: Upstream, asked_bytes: int) -> CallUsage:
    """Return an estimate of the usage of a call without a response.

    It is rather too high, because the missing response costs something, too.
    """
    prompt = asked_bytes // _MIN_BYTES_OF_TOKEN
    return CallUsage(prompt_tokens=prompt, dollars=_price(upstream, prompt, 0, None))


class UsageReader:
    """Finds the reported usage in a response while it is streamed."""

    def __init__(self, *, is_stream: bool, asked_bytes: int) -> None:
        self._is_stream = is_stream
        self._asked_bytes = asked_bytes
        self._buffer = bytearray()
        self._is_skipping = False
        self._chunks = 0
        self._bytes = 0
        self._counts: _Counts | None = None

    def feed(self, data: bytes) -> None:
        """Process the next part of a response."""
        self._bytes += len(data)
        if self._is_stream:
            # Only new data is searched, because a line may come in very small parts.
            *lines, data = data.split(b"\n")
            for line in lines:
                self._read_line(bytes(self._buffer) + line)
                self._buffer.clear()
        if not self._is_skipping:
            self._buffer += data
        if len(self._buffer) > _MAX_LINE_BYTES:
            self._buffer.clear()
            self._is_skipping = not self._is_stream

    def result(self, upstream: Upstream, told_dollars: float | None) -> CallUsage:
        """Return the reported usage, or else an estimate by the sizes of request and response.

        `told_dollars` is the price in a response header.
        """
        if not self._is_stream:
            self._read(bytes(self._buffer))
        found = self._counts
        if found is None:
            # The response was cut off, or reports no usage.
            count = self._chunks if self._is_stream else self._bytes // _BYTES_OF_TOKEN
            prompt_tokens = self._asked_bytes // _BYTES_OF_TOKEN
            found = _Counts(prompt_tokens=prompt_tokens, completion_tokens=count)
        prompt = found.prompt_tokens or found.input_tokens
        completion = found.completion_tokens or found.output_tokens
        given = told_dollars if found.cost is None else found.cost
        return CallUsage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            dollars=_price(upstream, prompt, completion, given),
        )

    def _read_line(self, line: bytes) -> None:
        if not line.startswith(b"data:"):
            return
        self._chunks += 1
        if b'"usage"' in line:
            self._read(line[len(b"data:") :])

    def _read(self, text: bytes) -> None:
        answer = decode_or_none(text, _Answer)
        if answer is None:
            return
        found = answer.usage or (answer.response.usage if answer.response else None)
        self._counts = found or self._counts


type _Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_USED)]


class _Counts(msgspec.Struct, frozen=True):
    prompt_tokens: _Tokens = 0
    completion_tokens: _Tokens = 0
    input_tokens: _Tokens = 0
    output_tokens: _Tokens = 0
    cost: float | None = None


class _Response(msgspec.Struct, frozen=True):
    usage: _Counts | None = None


class _Answer(msgspec.Struct, frozen=True):
    usage: _Counts | None = None
    response: _Response | None = None


_request_decoder: Final = msgspec.json.Decoder(dict[str, Raw])


def _with_usage(options: Raw | None) -> bytes:
    known = None if options is None else decode_or_none(options, _request_decoder)
    return msgspec.json.encode({**(known or {}), "include_usage": True})


def _price(upstream: Upstream, prompt: int, completion: int, told: float | None) -> float | None:
    in_cost, out_cost = upstream.input_cost_per_token, upstream.output_cost_per_token
    if in_cost is None and out_cost is None:
        return told if told is not None and 0 <= told <= MAX_USED else None
    return prompt * (in_cost or 0.0) + completion * (out_cost or 0.0)
