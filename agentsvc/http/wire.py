"""Decoding of bodies, queries and paths, and encoding of responses, pages and errors.

All input validation happens here and raises classes of `agentsvc.base.errors`; handlers never parse
raw input.
"""

import asyncio
import contextlib
import functools
import itertools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage
from msgspec import UNSET, UnsetType

from agentsvc.base import (
    MAX_INT,
    AgentsvcError,
    BodyTooLarge,
    InvalidRequest,
    MalformedBody,
    Problem,
    UnsupportedMediaType,
    convert,
    decode_cursor,
    decoder_of,
    encode_cursor,
    exceeds_value_limit,
    matching,
    new_id,
    parse_time,
    parse_uuid,
    refusal,
    strip_string_contents,
)

CALLBACK_BODY_BYTES: Final = 64 * 1024 * 1024
"""Body limit of callbacks from sandboxes; a rejected callback would be retried forever."""

DEPTH_MAX: Final = 200
"""Maximum nesting depth of a body; far below what exhausts the interpreter's stack."""

PAGE_MAX: Final = 100

type Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=MAX_INT)]
type Time = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
type Limit = Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)]
type OnMoreBody = Callable[[int], Awaitable[None]]
type ClientId = Annotated[
    str,
    matching(
        r"^[A-Za-z0-9._-]+(?!\n)$",
        "of letters, digits, `.`, `_` and `-`",
        min_length=1,
        max_length=128,
    ),
]
type EnvName = Annotated[
    str,
    matching(
        r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$",
        "of letters, digits and `_`, with no digit in front",
        max_length=256,
    ),
]
type EnvValue = Annotated[str, matching(r"^[^\x00]*$", "without NUL", max_length=65536)]
type ImageUrl = Annotated[
    str, matching(r"\A(?i:https?://|data:)", "that begins with `http://`, `https://` or `data:`")
]

BODY_LIMIT: Final[web.RequestKey[int]] = web.RequestKey("body_limit", int)
"""Body limit of a request in bytes, if it is larger than the application's."""
BODY: Final[web.RequestKey[bytes]] = web.RequestKey("body", bytes)
"""The body of a request, if the middleware has read it already."""
ON_MORE_BODY: Final[web.RequestKey[OnMoreBody]] = web.RequestKey("on_more_body")
"""Awaited with the number of body bytes beyond Content-Length: chunked or compressed bodies."""
ON_STREAMED: Final[web.RequestKey[Callable[[bytes], Awaitable[None]]]] = web.RequestKey(
    "on_streamed"
)
"""Awaited with the last item of a streamed array before its end is sent."""

encode: Final = msgspec.json.Encoder().encode
"""Encodes a value as JSON."""

_ENCODINGS: Final = frozenset({"", "identity", "gzip", "deflate"})
_REQUIRED: Final[Any] = object()
_MAX_VALUES: Final = 100_000
"""Most values of a body in which all validation errors are searched, not only the first."""
_MAX_LISTED: Final = 100
_PART_BYTES: Final = 64 * 1024
_INLINE_BYTES: Final = 256 * 1024
"""Largest body that is parsed on the event loop; larger ones are parsed in a thread."""
_MAX_STEP_CHARS: Final = 200


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The query of a list operation without filters."""

    page_id: str | None = None
    limit: Limit = PAGE_MAX


class Page[T](msgspec.Struct, frozen=True, kw_only=True):
    """One page of a list; `next_page_id` is null on the last one."""

    items: list[T]
    """The items of the page, in the order of the list"""
    next_page_id: str | None = None


class Success(msgspec.Struct, frozen=True, kw_only=True):
    """The response of an operation that returns no data."""

    success: bool = True
    """Always true; failures have another status"""


SUCCESS: Final = Success()


def page_offset(page_id: str | None) -> int:
    """Decode the offset of a page of an in-memory list; raises InvalidRequest."""
    return 0 if page_id is None else max(decode_cursor(page_id, int)[0], 0)


def page_at[T](items: Sequence[T], offset: int, limit: int) -> Page[T]:
    """Return the page of an in-memory list at an offset."""
    end = offset + limit
    next_page_id = encode_cursor(end) if end < len(items) else None
    return Page(items=list(items[offset:end]), next_page_id=next_page_id)


def page_by_name[T](
    items: Iterable[T], page_id: str | None, limit: int, name_of: Callable[[T], str]
) -> Page[T]:
    """Return a page of an in-memory list that is sorted by name; raises InvalidRequest."""
    [last] = ("",) if page_id is None else decode_cursor(page_id, str)
    rest = [one for one in items if name_of(one) > last]
    next_page_id = encode_cursor(name_of(rest[limit - 1])) if limit < len(rest) else None
    return Page(items=rest[:limit], next_page_id=next_page_id)


# Responses


def json_response(value: Any, *, status: int = 200) -> web.Response:
    """Return a response with a value as JSON."""
    return raw_json_response(encode(value), status=status)


def text_response(text: str) -> web.Response:
    """Return a plain text response."""
    return web.Response(text=text, content_type="text/plain")


def raw_json_response(body: bytes, *, status: int = 200) -> web.Response:
    """Return a response with an encoded JSON body."""
    return web.Response(body=body, status=status, content_type="application/json")


async def stream_array(
    request: web.Request, items: AsyncGenerator[Any, None]
) -> web.StreamResponse:
    """Respond with a JSON array; each item is sent as soon as it is available."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    async with contextlib.aclosing(items):
        separator = b"[\n"
        item = b""
        async for value in items:
            if not response.prepared:
                await response.prepare(request)
            item = encode(value)
            await response.write(separator + item)
            separator = b",\n"
    if ON_STREAMED in request:
        await request[ON_STREAMED](item)
    await response.write(b"]")
    await response.write_eof()
    return response


def raw_page(items: Iterable[bytes], next_page_id: str | None) -> bytes:
    """Encode a page from encoded items."""
    return b'{"items":[' + b",".join(items) + b'],"next_page_id":' + encode(next_page_id) + b"}"


def raw_array(items: Iterable[bytes | None]) -> bytes:
    """Encode an array from encoded items; None becomes null."""
    return b"[" + b",".join(b"null" if item is None else item for item in items) + b"]"


def error_body(error: AgentsvcError, request_id: str) -> bytes:
    """Encode the error body; `detail` is a list of problems for an invalid request.

    `error.extra` adds members, or replaces `detail`, for clients that expect another format.
    """
    detail = _shown_problems(error) if isinstance(error, InvalidRequest) else error.message
    body = {"detail": detail, **error.extra, "code": error.code, "request_id": request_id}
    return encode(body)


@contextlib.contextmanager
def error_member() -> Iterator[None]:
    """Add the member `error` to errors raised in the context, for clients that expect it."""
    try:
        yield
    except AgentsvcError as exc:
        exc.extra = {**exc.extra, "error": exc.message}
        raise


def raw_error_response(error: AgentsvcError) -> bytes:
    """Return the response to a connection that is rejected before its request is read."""
    request_id = new_id()
    body = error_body(error, request_id)
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        f"X-Request-Id: {request_id}",
        "Retry-After: 1",
        "Connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + body


# Bodies


async def read_json[T](
    request: web.Request,
    kind: type[T] | msgspec.json.Decoder[T],
    *,
    default: T = _REQUIRED,
    wide_integers: bool = False,
) -> T:
    """Decode the JSON body; without a body, return the default, or raise if there is no default.

    Integers beyond 64 bits are rejected, unless `wide_integers` allows them for values that are
    stored unchanged. Raises InvalidRequest, MalformedBody, BodyTooLarge or UnsupportedMediaType.
    """
    has_body = request.can_read_body or BODY in request
    body = await read_body(request) if has_body else b""
    if body:
        checks = functools.partial(_decode_checked, kind=kind, wide_integers=wide_integers)
        return await parse_in_thread(body, checks)
    if default is _REQUIRED:
        raise InvalidRequest("Field required", loc=("body",), kind="missing")
    return default


def changes_of(kind: type[msgspec.Struct], name: str, text: str) -> type[msgspec.Struct]:
    """Derive the type of partial updates: all fields are optional; `text` is its docstring."""
    fields = [
        # A redefined field does not inherit its encoded name.
        (one.name, one.type | UnsetType, msgspec.field(default=UNSET, name=one.encode_name))
        for one in msgspec.structs.fields(kind)
    ]
    return msgspec.defstruct(
        name,
        fields,
        bases=(kind,),
        namespace={"__doc__": text},
        module=kind.__module__,
        frozen=True,
        kw_only=True,
    )


async def read_changes(request: web.Request, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a partial update that the client sent; raises like `read_json`."""
    sent = msgspec.structs.asdict(await read_json(request, kind))
    return {name: value for name, value in sent.items() if value is not UNSET}


async def read_body(request: web.Request) -> bytes:
    """Read a JSON body as valid UTF-8 bytes, up to the size limit; does not decode it.

    For operations that store a body unchanged; others use `read_json`.
    """
    _check_headers(request)
    return await read_text(request)


async def read_text(request: web.Request) -> bytes:
    """Read a body of any media type as valid UTF-8 bytes, up to the size limit."""
    if BODY in request:
        return request[BODY]
    _check_encoding(request)
    limit = request.get(BODY_LIMIT, request.client_max_size)
    if (request.content_length or 0) > limit:
        raise _too_large(limit)
    body = bytearray()
    announced = request.content_length or 0
    on_more = request.get(ON_MORE_BODY)
    try:
        async for chunk in request.content.iter_any():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
            if on_more is not None and len(body) > announced:
                await on_more(len(body) - announced)
                announced = len(body)
        body.decode()
    except (web.RequestPayloadError, BadHttpMessage, ConnectionResetError) as exc:
        # Otherwise aiohttp reads on after the response and logs the same error again.
        request.content.feed_eof()
        raise MalformedBody("The body does not match its headers", detail=str(exc)) from exc
    except UnicodeDecodeError as exc:
        raise MalformedBody("The body is not valid UTF-8", detail=str(exc)) from exc
    return bytes(body)


async def parse_in_thread[T](body: bytes, reads: Callable[[bytes], T]) -> T:
    """Parse a body with `reads`; a large one in a thread, so that the event loop is not blocked."""
    return reads(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(reads, body)


def decode[T](
    body: bytes | msgspec.Raw,
    kind: type[T] | msgspec.json.Decoder[T],
    *,
    loc: Sequence[str | int] = ("body",),
) -> T:
    """Decode JSON; raises InvalidRequest with the location of each problem.

    `loc` is the location of the JSON if it is a part of a body.
    """
    if exceeds_value_limit(bytes(body)):
        raise InvalidRequest("The body has too many values", loc=loc, kind="too_many_values")
    decoder = decoder_of(kind)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise _validation_error(bytes(body), decoder, loc, str(exc)) from exc
    except msgspec.DecodeError as exc:
        raise _syntax_error(str(exc), bytes(body), loc) from exc
    except RecursionError as exc:
        raise _too_deep() from exc


def _decode_checked[T](
    body: bytes, kind: type[T] | msgspec.json.Decoder[T], *, wide_integers: bool
) -> T:
    value = decode(body, kind)
    check_extremes(body, wide_integers=wide_integers)
    return value


def check_extremes(body: bytes, *, wide_integers: bool = False) -> None:
    """Reject excessive nesting and integers beyond 64 bits in well-formed JSON.

    The decoder accepts both in fields of any type, but storing or forwarding the value would fail.
    """
    _check_depth(body)
    if not wide_integers:
        _check_integers(body)


# Queries and paths


def read_query[T: msgspec.Struct](request: web.Request, shape: type[T]) -> T:
    """Decode the query to a struct; unknown parameters are ignored.

    A list field takes all values of its parameter, any other field the last one. An empty
    `page_id` is ignored: clients send it for the first page. Raises InvalidRequest.
    """
    given: dict[str, Any] = {}
    for name, is_list, reads_null in _parameters(shape):
        values = request.query.getall(name, [])
        for value in values:
            check_text(value, ("query", name))
        if values and (name != "page_id" or values[-1]):
            given[name] = values if is_list else values[-1]
            if reads_null and values[-1].lower() == "null":
                # msgspec converts `null` to None; the space makes it an invalid value instead.
                given[name] = " null"
    return convert(given, shape, loc=("query",), strict=False)


def path_id(request: web.Request, name: str) -> str:
    """Return a UUID in the path (dashes optional) as 32 hex digits; raises InvalidRequest."""
    return to_id(request.match_info[name], ("path", name))


def path_text(request: web.Request, name: str) -> str:
    """Return a text parameter of the path; raises InvalidRequest for NUL and invalid Unicode."""
    return check_text(request.match_info[name], ("path", name))


def path_user(request: web.Request) -> str:
    """Return the user id in the path; a UUID as 32 hex digits, as `/users/me` returns it."""
    text = path_text(request, "user_id")
    return parse_uuid(text) or text


def to_id(text: str, loc: Sequence[str | int]) -> str:
    """Parse a UUID and return its 32 hex digits; raises InvalidRequest."""
    found = parse_uuid(text)
    if found is None:
        raise InvalidRequest("Input should be a valid UUID", loc=loc, kind="uuid_parsing")
    return found


def find_time(text: str | None, name: str, *, place: str = "query") -> datetime | None:
    """Parse an optional ISO 8601 time of a parameter; raises InvalidRequest."""
    moment = parse_time(text) if text is not None else None
    if text is not None and moment is None:
        raise InvalidRequest(
            "Input should be a valid datetime", loc=(place, name), kind="datetime_parsing"
        )
    return moment


def check_text(text: str, loc: Sequence[str | int]) -> str:
    """Return a text of a query or path; raises InvalidRequest for NUL and invalid Unicode."""
    if "\0" in text or _SURROGATE.search(text):
        raise InvalidRequest("Input should be text without NUL", loc=loc, kind="string_unicode")
    return text


_SURROGATE = re.compile("[\ud800-\udfff]")
_LONG_NUMBER = re.compile(rb"\d{19}")
_INTEGER = re.compile(rb"(?<![\d.])-?\d{19,}+(?![.eE])")
_BRACKETS: Final = b"[{]}"
_STEPS: Final = bytes.maketrans(_BRACKETS, b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in _BRACKETS)
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_BYTE = re.compile(r" \(byte (\d+)\)$")


def _check_headers(request: web.Request) -> None:
    kind = request.content_type if "Content-Type" in request.headers else "application/json"
    is_json = kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )
    if not is_json:
        raise UnsupportedMediaType("The body should be `application/json`")


def _check_encoding(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "").strip().lower() not in _ENCODINGS:
        raise MalformedBody("The content encoding is not supported; use gzip or deflate")


def _check_integers(body: bytes) -> None:
    """Reject integers beyond 64 bits in well-formed JSON."""
    # Search in parts: a single call on a large body would hold the interpreter lock too long.
    starts = range(0, len(body), _PART_BYTES)
    if not any(_LONG_NUMBER.search(body, at, at + _PART_BYTES + 18) for at in starts):
        return
    for match in itertools.chain.from_iterable(map(_INTEGER.finditer, strip_string_contents(body))):
        if not -MAX_INT - 1 <= int(match.group()[:40]) <= MAX_INT:
            raise InvalidRequest(
                "Integers should fit in 64 bits", loc=("body",), kind="int_parsing_size"
            )


def _check_depth(body: bytes) -> None:
    """Reject excessive nesting in well-formed JSON."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return
    depth = 0
    for part in strip_string_contents(body):
        # Each opening bracket is a signed byte +1, each closing one -1; the sum so far is the depth.
        steps = memoryview(part.translate(_STEPS, _NOT_BRACKETS)).cast("b")
        depths = list(itertools.accumulate(steps, initial=depth))
        if max(depths) > DEPTH_MAX:
            raise _too_deep()
        depth = depths[-1]


def _too_deep() -> InvalidRequest:
    return InvalidRequest("The body is nested too deeply", loc=("body",), kind="recursion_loop")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body should have at most {limit} bytes")


def _syntax_error(message: str, body: bytes, loc: Sequence[str | int]) -> InvalidRequest:
    """Convert the decoder's message about malformed JSON to an error with an offset."""
    where = _BYTE.search(message)
    text = message.removeprefix("JSON is malformed: ")
    offset = len(body)
    if where is not None:
        text, offset = text[: -len(where.group())], int(where.group(1))
    return InvalidRequest(f"JSON decode error: {text}", loc=(*loc, offset), kind="json_invalid")


def _validation_error(
    body: bytes, decoder: msgspec.json.Decoder[Any], loc: Sequence[str | int], message: str
) -> InvalidRequest:
    """Return the error for valid JSON of the wrong type; decodes it again to find all problems."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        # The decoder's message has the location of the first problem, except inside maps.
        path = message.partition(" - at `$")[2]
        steps = [name or int(index) for name, index in _STEP.findall(path)]
        text = "Invalid value; the body has too many values to report details"
        first = Problem(type="value_error", loc=(*loc, *steps), msg=text)
        return InvalidRequest.of([first], is_all=False)
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as exc:
        return _syntax_error(str(exc), body, loc)
    except RecursionError:
        return _too_deep()
    return refusal(value, decoder.type, loc=loc, strict=decoder.strict, dec_hook=decoder.dec_hook)


def _shown_problems(error: InvalidRequest) -> list[Problem]:
    """Return the problems to show, and a last one with the number of those omitted."""
    shown = [
        msgspec.structs.replace(one, loc=tuple(_truncated(step) for step in one.loc))
        for one in error.problems[:_MAX_LISTED]
    ]
    left_out = len(error.problems) - len(shown)
    if error.is_all and not left_out:
        return shown
    count = f"{left_out} or more" if not error.is_all else left_out
    text = (
        f"{count} further problems are not listed" if left_out else "There may be further problems"
    )
    return [*shown, Problem(type="too_many_problems", loc=error.loc[:1], msg=text)]


def _truncated(step: str | int) -> str | int:
    """Truncate a name in a location, since it may come from the client."""
    if isinstance(step, int) or len(step) <= _MAX_STEP_CHARS:
        return step
    return f"{step[:_MAX_STEP_CHARS]}…"


@functools.cache
def _parameters(shape: type) -> tuple[tuple[str, bool, bool], ...]:
    """Return name, whether it is a list, and whether `null` decodes to None, per parameter."""
    return tuple(
        (
            field.encode_name,
            get_origin(_without_annotation(field.type)) in (list, tuple),
            _reads_null(field.type),
        )
        for field in msgspec.structs.fields(shape)
    )


def _reads_null(kind: Any) -> bool:
    try:
        return msgspec.convert("null", kind, strict=False) is None
    except msgspec.ValidationError:
        return False


def _without_annotation(kind: Any) -> Any:
    """Return a type without `Annotated`."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
