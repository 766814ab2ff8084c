"""Reads parts of events, which may have any shape. Pure."""

from collections.abc import Mapping
from typing import Any


def member(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a member that should be an object, or an empty one."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def texts(parts: Any, *, image: str = "") -> str:
    """Return the text of a message's or a response's content, with `image` in place of each image."""
    if isinstance(parts, str):
        return parts
    found = parts if isinstance(parts, list) else []
    return "\n".join(
        str(part.get("text") or (image if part.get("type") == "image" else ""))
        for part in found
        if isinstance(part, dict)
    )
