"""Bodies of the few operations that take an HTML form; the same fields as JSON are taken too."""

from typing import Final
from urllib.parse import parse_qsl

import msgspec
from aiohttp import web

from agentsvc.base import BadRequest
from agentsvc.http.routes import FORM
from agentsvc.http.wire import check_text, decode, encode, read_json, read_text

_FIELDS_MAX: Final = 20


async def read_form[T](request: web.Request, kind: type[T] | msgspec.json.Decoder[T]) -> T:
    """Return the fields of a form as a struct; of one given twice, the last counts.

    Raises InvalidRequest for a field that is missing or does not fit, BadRequest for what is no
    form.
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
