"""Converts between rows and structs whose fields are named like the columns."""

from datetime import datetime
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from agentsvc.base import to_stored
from agentsvc.storage.queries import Row

_IN_JSON: Final = (types.StructType, types.DictType, types.CollectionType)
_HAVE_PARTS: Final = (msgspec.Struct, tuple, dict)
_PLAIN: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""The types of most values, which are stored as they are."""


def record_of[T: msgspec.Struct](row: Row, kind: type[T], **given: Any) -> T:
    """Return a record from the columns with the names of its fields; `given` takes precedence.

    Structs, lists and dicts are stored as JSON. A field without a column raises IndexError, even if it
    has a default.
    """
    columns = {name: row[name] for name in kind.__struct_fields__ if name not in given}
    for name, decoder in _decoders(kind).items():
        if columns.get(name) is not None:
            columns[name] = decoder.decode(columns[name])
    return msgspec.convert({**columns, **given}, kind, strict=False)


def row_of(record: msgspec.Struct, **given: Any) -> dict[str, Any]:
    """Return the fields of a record as stored in columns; `given` takes precedence."""
    fields = {**msgspec.structs.asdict(record), **given}
    return {
        name: value if type(value) in _PLAIN else _stored(value) for name, value in fields.items()
    }


def _stored(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_stored(value)
    if isinstance(value, _HAVE_PARTS):
        return msgspec.json.encode(value).decode()
    return value


@cache
def _decoders(kind: type[msgspec.Struct]) -> dict[str, msgspec.json.Decoder[Any]]:
    return {
        field.name: msgspec.json.Decoder(field.type)
        for field in msgspec.structs.fields(kind)
        if _has_parts(types.type_info(field.type))
    }


def _has_parts(kind: types.Type) -> bool:
    kinds = kind.types if isinstance(kind, types.UnionType) else (kind,)
    return any(isinstance(one, _IN_JSON) for one in kinds)
