"""Texts of the description, read from the source: what is written below a field or an enum's member.

Python keeps no such docstrings at run time, so they cost a server nothing until its description is
asked for. A field that means the same wherever it is has its text in `fields`.
"""

import ast
import itertools
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect as types

from agentsvc.http.openapi.fields import SHARED

type Texts = dict[str, str]
"""The docstring of each member of a class by its Python name."""


class Source:
    """The docstrings of the members of classes; reads each module once."""

    def __init__(self) -> None:
        self._modules: dict[str, dict[str, Texts]] = {}

    def fields(self, kind: Any) -> Texts:
        """Return the text of each field of a struct by its name in JSON; inherited ones count."""
        own: Texts = {}
        for parent in reversed(getattr(kind, "__origin__", kind).__mro__):
            if issubclass(parent, msgspec.Struct) and parent is not msgspec.Struct:
                own |= self._members(parent)
        found = {
            field.encode_name: own.get(field.name) or SHARED.get(field.encode_name, "")
            for field in msgspec.structs.fields(kind)
        }
        return {name: text for name, text in found.items() if text}

    def values(self, kind: type[Enum]) -> str:
        """Return a list in Markdown of what the values of an enum mean, as far as it says so."""
        texts = self._members(kind)
        return "\n".join(
            f"- `{member.value}`: {texts[name]}"
            for name, member in kind.__members__.items()
            if name in texts
        )

    def _members(self, kind: type) -> Texts:
        name = kind.__module__
        if name not in self._modules:
            self._modules[name] = dict(_classes(ast.parse(_source_of(name)), ""))
        return self._modules[name].get(kind.__qualname__, {})


def classes_of(kinds: Sequence[Any]) -> list[type]:
    """Return every struct and enum that types consist of, however deep."""
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


def _source_of(module: str) -> str:
    # What the interpreter itself reads source with, such as `inspect`, keeps all it has read.
    file = sys.modules[module].__file__
    return Path(file).read_text() if file else ""


def _classes(node: ast.AST, outside: str) -> Iterator[tuple[str, Texts]]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef():
                yield outside + child.name, dict(_texts(child.body))
                yield from _classes(child, f"{outside}{child.name}.")
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from _classes(child, f"{outside}{child.name}.<locals>.")
            case _:
                pass


def _texts(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    for member, text in itertools.pairwise(body):
        match member, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(written))),
            ):
                yield name, " ".join(written.split())
            case _:
                pass
