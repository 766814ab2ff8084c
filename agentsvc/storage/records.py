"""Records as rows, and rows as records, wherever a column is called as its field."""

from datetime import datetime
from typing import Any

import msgspec

from agentsvc.base import to_stored
from agentsvc.storage.database import Row


def record_of[T: msgspec.Struct](row: Row, kind: type[T], **given: Any) -> T:
    """Return a record from the columns of its fields; what is given counts instead of a column.

    A field that is neither raises IndexError, also where it has a default.
    """
    columns = {name: row[name] for name in kind.__struct_fields__ if name not in given}
    return msgspec.convert({**columns, **given}, kind, strict=False)


def row_of(record: msgspec.Struct, **given: Any) -> dict[str, Any]:
    """Return the fields of a record as columns, times as they are stored; what is given counts instead."""
    fields = {**msgspec.structs.asdict(record), **given}
    return {
        name: to_stored(value) if isinstance(value, datetime) else value
        for name, value in fields.items()
    }
