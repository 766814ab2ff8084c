"""The published descriptions of both generations, and how ours is held against them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

type Json = dict[str, Any]

DATA: Final = Path(__file__).parent / "data" / "openapi"
DOCUMENTS: Final[dict[str, Json]] = {
    file.stem: json.loads(file.read_text()) for file in sorted(DATA.glob("*.json"))
}


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as somebody else has published it."""

    version: str
    method: str
    path: str
    about: Json

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def success(self) -> tuple[int, Json]:
        """Return the status of the answer to what is right, and its schema."""
        status = min(self.about["responses"])
        return int(status), self.about["responses"][status]["content"]["application/json"]["schema"]


def operations() -> Iterator[Published]:
    for version, document in DOCUMENTS.items():
        for path, methods in document["paths"].items():
            for method, about in methods.items():
                yield Published(version=version, method=method, path=path, about=about)


def shape_of(path: str) -> str:
    """Return a path without the names of its parts, which no client sees."""
    return re.sub(r"\{[^{}]+\}", "{}", path)


def misfits(published: Json, theirs: Json, ours: Json, document: Json, at: str = "$") -> list[str]:
    """Return where a value as we describe it is not what a published schema promises.

    `theirs` is the document of the published schema, `document` that of ours.
    """
    options = list(_options(published, theirs))
    if not options:
        return []
    found: list[str] = []
    for option in _options(ours, document) or [{}]:
        likely = [one for one in options if _type(one) == _type(option)] or options
        tried = [_misfits(one, theirs, option, document, at) for one in likely]
        fewest: list[str] = min(tried, key=len)
        found += fewest
    return found


def _misfits(published: Json, theirs: Json, ours: Json, document: Json, at: str) -> list[str]:
    if not _is_of_type(ours, published):
        return [f"{at}: {_type(ours)} where {_type(published)} is published"]
    values = _values(published)
    if values and not (_values(ours) and _values(ours) <= values):
        beyond = ", ".join(sorted(map(str, _values(ours) - values))) or "anything"
        return [f"{at}: {beyond} beside what is published"]
    if "properties" in published or published.get("required"):
        return _missing(published, theirs, ours, document, at)
    more = published.get("additionalProperties")
    if isinstance(more, dict):
        return [
            problem
            for name, schema in ours.get("properties", {}).items()
            for problem in misfits(more, theirs, schema, document, f"{at}.{name}")
        ]
    if "items" in published and ours.get("maxItems") != 0:
        return misfits(published["items"], theirs, ours.get("items", {}), document, f"{at}[]")
    return []


def _missing(published: Json, theirs: Json, ours: Json, document: Json, at: str) -> list[str]:
    """Return what is promised and not there, and what is there and of another type."""
    properties = ours.get("properties", {})
    found = [
        f"{at}.{name}: published as required, and not always there"
        for name in published.get("required", [])
        if name not in ours.get("required", [])
    ]
    for name, schema in published.get("properties", {}).items():
        if name in properties:
            found += misfits(schema, theirs, properties[name], document, f"{at}.{name}")
    return found


def _options(schema: Json, document: Json) -> list[Json]:
    """Return the alternatives of a schema, without references; none where anything goes."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return _options(document["components"]["schemas"][name], document)
    if "anyOf" in schema or "oneOf" in schema:
        parts = schema.get("anyOf", []) + schema.get("oneOf", [])
        return [option for part in parts for option in _options(part, document)]
    if isinstance(schema.get("type"), list):
        return [{**schema, "type": one} for one in schema["type"]]
    return [schema] if {"type", "const", "enum"} & schema.keys() else []


def _is_of_type(ours: Json, published: Json) -> bool:
    return _type(ours) in {_type(published), "integer" if _type(published) == "number" else ""}


def _type(schema: Json) -> str:
    values = _values(schema)
    if "type" in schema or not values:
        return str(schema.get("type", "anything"))
    return "string" if all(isinstance(value, str) for value in values) else "integer"


def _values(schema: Json) -> set[Any]:
    return {schema["const"]} if "const" in schema else set(schema.get("enum", ()))
