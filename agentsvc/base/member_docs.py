"""Reads the docstrings of fields, settings and enum members from the source.

Python does not keep them at run time, so they cost a server nothing until they are needed.
"""

import ast
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

type Texts = dict[str, str]
"""The docstring of each member of a class by its Python name."""


class MemberDocs:
    """Docstrings of the members of classes; parses each module once."""

    def __init__(self, shared: Mapping[str, str] = MappingProxyType({})) -> None:
        """Take default texts for fields that mean the same in every struct, by field name."""
        self._shared = shared
        self._modules: dict[str, dict[str, Texts]] = {}

    def fields(self, kind: Any) -> Texts:
        """Return the docstring of each field of a struct by its name in JSON, also of inherited ones."""
        own: Texts = {}
        for parent in reversed(getattr(kind, "__origin__", kind).__mro__):
            if issubclass(parent, msgspec.Struct) and parent is not msgspec.Struct:
                own |= self.members(parent)
        found = {
            field.encode_name: own.get(field.name) or self._shared.get(field.encode_name, "")
            for field in msgspec.structs.fields(kind)
        }
        return {name: text for name, text in found.items() if text}

    def values(self, kind: type[Enum]) -> str:
        """Return a Markdown list of the documented values of an enum."""
        texts = self.members(kind)
        return "\n".join(
            f"- `{member.value}`: {texts[name]}"
            for name, member in kind.__members__.items()
            if name in texts
        )

    def members(self, kind: type) -> Texts:
        """Return the docstring of each member of a class by its Python name."""
        name = kind.__module__
        if name not in self._modules:
            self._modules[name] = dict(_classes(ast.parse(_source_of(name)), ""))
        return self._modules[name].get(kind.__qualname__, {})


def _source_of(module: str) -> str:
    # Not by `inspect`, whose line cache keeps every file in memory.
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
