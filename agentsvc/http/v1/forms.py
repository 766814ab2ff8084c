"""Decodes request bodies of the operations that accept an HTML form or the same fields as JSON."""

from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest
from agentsvc.http.routes import FORM
from agentsvc.http.wire import check_text, decode, encode, read_json, read_text

_FIELDS_MAX: Final = 20


async def read_form[T](request: web.Request, kind: type[T] | msgspec.json.Decoder[T]) -> T:
    """Decode a form or a JSON body to a struct; the last value of a repeated form field counts.

    Raises InvalidRequest for a missing or invalid field, BadRequest for a body that is not a form.
    """
    if request.content_type != FORM:
        return await read_json(request, kind)
    text = (await read_text(request)).decode()
    try:
        fields = dict(parse_qsl(text, max_num_fields=_FIELDS_MAX))
    except ValueError as exc:
        raise BadRequest("The body is not a form", detail=str(exc)) from exc
    for name, value in fields.items():
        check_text(name + value, ("body",))
    return decode(encode(fields), kind)
