"""JSON schemas (2020-12) of Python types, with shared components."""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from agentsvc.base import MemberDocs, Secret
from agentsvc.http.openapi.fields import SHARED
from agentsvc.http.routes import SHOWN_AS
from agentsvc.settings import Settings

type Json = dict[str, Any]

_PREFIX: Final = "#/components/schemas/"
_GENERIC: Final = re.compile(r"(\w+)\[(.+)\]")
_IGNORING_CASE: Final = re.compile(r"\(\?i:([^()]*)\)")
_INVALID_NAME_CHARS: Final = re.compile(r"[^a-zA-Z0-9.\-_]")
_UUID: Final = "^(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})$"
_OF_V0: Final = "agentsvc.http.v0."
_OF_AGENTS: Final = "agentsvc.agentserver.responses."


class Schemas:
    """The schemas of types, and the components that they refer to."""

    def __init__(
        self, kinds: Sequence[Any], roots: Iterable[Json], components: dict[str, Json]
    ) -> None:
        self.components = components
        self._kinds = kinds
        # Keyed by id, because types with a `Meta` are not all hashable; `_kinds` keeps them alive.
        self._roots = {id(kind): root for kind, root in zip(kinds, roots, strict=True)}

    def of(self, kind: Any) -> Json:
        """Return the schema of one of the types."""
        return self._roots[id(kind)]

    def find(self, schema: Json) -> Json:
        """Return the component that a schema refers to, or the schema itself."""
        if "$ref" in schema:
            return self.components[schema["$ref"].removeprefix(_PREFIX)]
        return schema


def schemas_of(types: Sequence[Any]) -> Schemas:
    """Generate the schemas of types; raw values get the schema of their `shown_as` type."""
    shown: dict[str, Any] = {}
    while True:
        roots, components = msgspec.json.schema_components(
            [*types, *shown.values()], schema_hook=_secret, ref_template=_PREFIX + "{name}"
        )
        found = {name for schema in (*roots, *components.values()) for name in _shown_types(schema)}
        if found <= shown.keys():
            break
        shown |= {name: _resolve(name) for name in found - shown.keys()}
    components = _with_texts(components, classes_of([*types, *shown.values()]))
    replacements = dict(zip(shown, roots[len(types) :], strict=True))
    names = name_components(components)
    change = _rewriter(replacements, names)
    named = {
        names[name]: {**change(schema), "title": names[name]} for name, schema in components.items()
    }
    return Schemas(types, map(change, roots[: len(types)]), named)


def name_components(components: dict[str, Json]) -> dict[str, str]:
    """Return a short and unique published name for each component."""
    short = {name: _short_name(name, schema["title"]) for name, schema in components.items()}
    taken = list(short.values())
    return {
        name: _module_of(name) + chosen if taken.count(chosen) > 1 else chosen
        for name, chosen in short.items()
    }


def without_null(schema: Json) -> Json:
    """Remove null from a schema, for parameters and bodies, which cannot be null."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    if rest.get("default", ...) is None:
        del rest["default"]
    if not options:
        return rest
    return {**rest, **options[0]} if len(options) == 1 else {**rest, "anyOf": options}


def reachable(start: Any, components: dict[str, Json]) -> set[str]:
    """Return the names of the components that a part of a document refers to, transitively."""
    names: set[str] = set()
    queue = list(_references(start))
    while queue:
        name = queue.pop()
        if name not in names:
            names.add(name)
            queue.extend(_references(components[name]))
    return names


def as_response_schema(component: Json) -> Json:
    """Convert the schema of a struct used only in responses: fields with a default are required."""
    properties = component.get("properties", {})
    always = [name for name, field in properties.items() if "default" in field]
    if not always:
        return component
    required = [name for name in properties if name in {*component.get("required", ()), *always}]
    shown = {name: _without_key(field, "default") for name, field in properties.items()}
    return {**component, "properties": shown, "required": required}


def classes_of(kinds: Sequence[Any]) -> list[type]:
    """Return all structs and enums in types, recursively."""
    queue: list[Any] = list(types.multi_type_info(kinds))
    found: dict[type, None] = {}
    while queue:
        node = queue.pop()
        if isinstance(node, types.StructType | types.EnumType):
            if node.cls in found:
                continue
            found[node.cls] = None
        if isinstance(node, tuple):
            queue.extend(node)
        elif isinstance(node, types.Type | types.Field):
            queue.extend(getattr(node, name) for name in node.__struct_fields__)
    return list(found)


def _with_texts(components: dict[str, Json], kinds: Iterable[type]) -> dict[str, Json]:
    """Add the descriptions of fields and of enum values to components."""
    source = MemberDocs({**MemberDocs().fields(Settings), **SHARED})
    described = dict(components)
    for kind in kinds:
        name = _component_of(kind, components)
        schema = components[name]
        if "properties" in schema:
            texts = source.fields(kind)
            fields: dict[str, Json] = schema["properties"]
            shown = {field: _with_text(one, texts.get(field)) for field, one in fields.items()}
            described[name] = {**schema, "properties": shown}
        elif values := source.values(kind):
            described[name] = {**schema, "description": f"{schema['description']}\n\n{values}"}
    return described


def _with_text(schema: Json, text: str | None) -> Json:
    tag = schema["enum"] if schema.keys() == {"enum"} and len(schema["enum"]) == 1 else None
    text = text or (f"Always `{tag[0]}`" if tag else None)
    described = {**schema, "description": text} if text else schema
    # A nullable secret is write-only, too.
    is_sent = any(option.get("writeOnly") for option in schema.get("anyOf", ()))
    return {**described, "writeOnly": True} if is_sent else described


def _component_of(kind: Any, components: dict[str, Json]) -> str:
    """Return msgspec's name for the component of a class: long if the short one is ambiguous."""
    arguments = getattr(kind, "__args__", ())
    of = [one.__name__ if isinstance(one, type) else repr(one) for one in arguments]
    inner = f"[{', '.join(of)}]" if of else ""
    short = _INVALID_NAME_CHARS.sub("_", kind.__name__ + inner)
    long = _INVALID_NAME_CHARS.sub("_", f"{kind.__module__}.{kind.__qualname__}")
    return short if short in components else long


def _secret(kind: type) -> Json:
    if kind is Secret:
        return {"type": "string", "format": "password", "writeOnly": True}
    raise NotImplementedError


def _rewriter(replacements: dict[str, Json], names: dict[str, str]) -> Callable[[Any], Any]:
    def change(node: Any) -> Any:
        if isinstance(node, list):
            return [change(item) for item in node]
        if not isinstance(node, dict):
            return node
        if SHOWN_AS in node:
            return change({**_overrides(node), **replacements[node[SHOWN_AS]]})
        changed = {name: change(value) for name, value in node.items()}
        if isinstance(changed.get("$ref"), str):
            changed["$ref"] = _PREFIX + names[changed["$ref"].removeprefix(_PREFIX)]
        if changed.get("format") == "uuid":
            # The format requires dashes, but ids are accepted with and without, and sent without.
            del changed["format"]
            changed["pattern"] = _UUID
        if isinstance(changed.get("pattern"), str):
            changed["pattern"] = to_ecma(changed["pattern"])
        if changed.get("required") == []:
            del changed["required"]
        return changed

    return change


def to_ecma(pattern: str) -> str:
    """Convert a Python regular expression to ECMAScript, which JSON schemas use."""
    spelled = _IGNORING_CASE.sub(lambda match: _any_case(match.group(1)), pattern)
    return spelled.replace(r"\A", "^").replace(r"\Z", "$").replace(r"\0", r"\x00")


def _any_case(text: str) -> str:
    letters = (f"[{one.upper()}{one.lower()}]" if one.isalpha() else one for one in text)
    return f"(?:{''.join(letters)})"


def _short_name(name: str, title: str) -> str:
    generic = _GENERIC.fullmatch(title)
    if generic is not None:
        words = re.findall(r"\w+", re.sub(r"[\w.]+\.", "", generic.group(2)))
        inner = "".join("Optional" if word == "None" else word for word in words)
        return inner + generic.group(1)
    last = name.rpartition(".")[2]
    if name.startswith(_OF_V0):
        return f"V0{last}"
    return f"Agent{last}" if name.startswith(_OF_AGENTS) else last


def _module_of(name: str) -> str:
    module = name.rpartition(".")[0].rpartition(".")[2].removeprefix("types_")
    return "".join(word.capitalize() for word in module.split("_"))


def _resolve(name: str) -> Any:
    module, _, kind = name.partition(":")
    return getattr(importlib.import_module(module), kind)


def _shown_types(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if SHOWN_AS in node:
            yield node[SHOWN_AS]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _shown_types(item)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith(_PREFIX):
            yield reference.removeprefix(_PREFIX)
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _references(item)


def _overrides(node: Json) -> Json:
    """Return the keywords of a raw value that override those of its `shown_as` type."""
    return {name: node[name] for name in ("default", "description") if name in node}


def _without_key(mapping: Json, name: str) -> Json:
    return {key: value for key, value in mapping.items() if key != name}
