"""Reads configuration layers into one tree, and validates each key against a struct.

Generic: the keys are defined in `schema`. A section is a struct, a dict of structs
(`specs.NAME.key`) or a dict of free tables (`backends.NAME.key`).
"""

import contextlib
import difflib
import math
import tomllib
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct, inspect

from agentsvc.base import StartFailed

PREFIX: Final = "AGENTSVC_"
_SHOWN: Final = 80
_SECTION, _SECTION_KEY, _NAMED_KEY = 1, 2, 3
_PLAIN_WORDS: Final[Mapping[type, str]] = {
    inspect.BoolType: "true or false",
    inspect.DictType: "a table",
    inspect.VarTupleType: "a list of strings",
}
_HINT: Final = "run `agentsvc config default` to see every key with its default"


class ConfigSource(StrEnum):
    """The layer that a value comes from."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class ConfigLayers(Struct, frozen=True, kw_only=True):
    """The merged layers: a tree of validated values, and the origin of every key."""

    values: dict[str, Any]
    origins: dict[str, ConfigSource]


class _EmptyTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The type of an empty table, valid where keys of a deeper level are expected."""


class _Given(Struct, frozen=True):
    """A value as given by one layer."""

    key: tuple[str, ...]
    value: Any
    origin: ConfigSource
    source: str
    base: Path | None = None

    @property
    def name(self) -> str:
        return ".".join(self.key)


def read(
    schema: type[Struct],
    *,
    file: Path | None,
    environ: Mapping[str, str],
    other_variables: frozenset[str],
    overrides: Mapping[str, Any],
    retired: Mapping[str, str],
) -> ConfigLayers:
    """Merge file, environment and command line over the defaults of a struct.

    Raises StartFailed for an unreadable file, an unknown key (with the nearest known one), a
    retired key (with its replacement) and a value of the wrong type.
    """
    merged: dict[tuple[str, ...], _Given] = {}
    for given in _all_given(schema, file, environ, other_variables, overrides):
        if given.name in retired:
            raise StartFailed(
                f"`{given.name}` in {given.source} is no longer a key", hint=retired[given.name]
            )
        merged[given.key] = given
    origins = dict.fromkeys(known_keys(schema), ConfigSource.DEFAULT)
    values: dict[str, Any] = {}
    for key, given in merged.items():
        _insert(values, key, _checked(schema, given))
        if len(key) > _SECTION:
            origins[given.name] = given.origin
    return ConfigLayers(values=values, origins=origins)


def known_keys(schema: type[Struct]) -> list[str]:
    """Return all dotted keys of sections with a fixed name; named tables have keys only if given."""
    return [
        f"{section.name}.{field.name}"
        for section in msgspec.structs.fields(schema)
        if _is_struct(section.type)
        for field in msgspec.structs.fields(section.type)
    ]


def expected(kind: Any) -> str:
    """Describe the valid values of a type, for messages."""
    if kind is _EmptyTable:
        return "a table"
    info = inspect.type_info(kind)
    extra: dict[str, Any] = {}
    while isinstance(info, inspect.Metadata):
        extra = {**(info.extra or {}), **extra}
        info = info.type
    return str(extra["expected"]) if "expected" in extra else _describe(info)


def _describe(info: inspect.Type) -> str:
    match info:
        case inspect.IntType():
            words = f"a whole number{_bounds(info)}"
        case inspect.FloatType():
            words = f"a number{_bounds(info)}"
        case inspect.EnumType(cls=cls):
            words = "one of " + ", ".join(f"`{member.value}`" for member in cls)
        case inspect.StrType(min_length=least) if least:
            words = "a string that is not empty"
        case _:
            words = _PLAIN_WORDS.get(type(info), "a string")
    return words


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge} to {info.le}"
    if info.gt is not None:
        most = f" and at most {info.le}" if info.le is not None else ""
        return f" greater than {info.gt:g}{most}"
    return f" of at least {info.ge:g}" if info.ge is not None else ""


# Sources of values


def _all_given(
    schema: type[Struct],
    file: Path | None,
    environ: Mapping[str, str],
    other_variables: frozenset[str],
    overrides: Mapping[str, Any],
) -> Iterator[_Given]:
    from_file = list(_from_file(schema, file)) if file else []
    yield from from_file
    tables = {given.key[:_SECTION_KEY] for given in from_file}
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and variable not in other_variables:
            yield _from_variable(variable, environ[variable], tables)
    for name, value in overrides.items():
        if value is not None:
            key = tuple(name.split(".", _SECTION_KEY))
            yield _Given(key, value, origin=ConfigSource.COMMAND_LINE, source="the command line")


def _from_file(schema: type[Struct], file: Path) -> Iterator[_Given]:
    for section, table in _parsed(file).items():
        for key, value in _leaves((section,), table, _key_length(schema, section) - _SECTION):
            yield _Given(key, value, origin=ConfigSource.FILE, source=str(file), base=file.parent)


def _leaves(key: tuple[str, ...], value: Any, depth: int) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys below a table; an empty table and any other value are leaves."""
    if depth and isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaves((*key, name), below, depth - 1)
    else:
        yield key, value


def _parsed(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except OSError as exc:
        raise StartFailed(
            f"the config file cannot be read: {file}", hint=exc.strerror or "check its permissions"
        ) from exc
    except UnicodeDecodeError as exc:
        raise StartFailed(
            f"the config file is not UTF-8 text: {file}", hint="save it as UTF-8"
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise StartFailed(f"the config file is not valid TOML: {file}", hint=str(exc)) from exc


def _from_variable(variable: str, text: str, tables: set[tuple[str, ...]]) -> _Given:
    key = tuple(variable.removeprefix(PREFIX).lower().split("__", _SECTION_KEY))
    # Variables are upper case, and a table in the file may have any case.
    spelled = next((table for table in tables if tuple(map(str.lower, table)) == key[:2]), key[:2])
    return _Given(
        key=(*spelled, *key[2:]), value=text, origin=ConfigSource.ENVIRONMENT, source=variable
    )


# Validation of a key


def _checked(schema: type[Struct], given: _Given) -> Any:
    kind = _kind_of(schema, given.key)
    if kind is None:
        hint = _nearest(schema, given) or _HINT
        raise StartFailed(f"`{given.name}` in {given.source} is not a known key", hint=hint)
    try:
        return _with_paths(_converted(given, kind), kind, given.base)
    except msgspec.ValidationError as exc:
        inside = f" ({exc})" if isinstance(given.value, dict | list) and given.value else ""
        raise StartFailed(
            f"`{given.name}` in {given.source} is {_shown(given.value)},"
            f" expected {expected(kind)}{inside}",
            hint=_default(schema, given.key) or _HINT,
            detail=str(exc),
        ) from exc
    except (UnicodeError, RuntimeError) as exc:
        # Too deeply nested, or `~user` of an unknown user.
        raise StartFailed(
            f"`{given.name}` in {given.source} cannot be read", hint=f"{exc}"
        ) from exc


def _kind_of(schema: type[Struct], key: tuple[str, ...]) -> Any:
    """Return the type of a key's values, or None if there is no such key."""
    section = _field(schema, key[0])
    if section is None or len(key) > _key_length(schema, key[0]):
        return None
    if len(key) < _key_length(schema, key[0]):
        return _EmptyTable
    if _is_struct(section):
        return _field(section, key[1])
    inner = _inner(section)
    return _field(inner, key[2]) if _is_struct(inner) else Any


def _key_length(schema: type[Struct], section: str) -> int:
    """Return the number of names in the keys of a section."""
    kind = _field(schema, section)
    return _SECTION_KEY if kind is None or _is_struct(kind) else _NAMED_KEY


def _field(struct: type[Struct], name: str) -> Any:
    return next((f.type for f in msgspec.structs.fields(struct) if f.name == name), None)


def _inner(section: Any) -> Any:
    """Return the type of the tables in a section of named tables."""
    return get_args(section)[1]


def _converted(given: _Given, kind: Any) -> Any:
    """Convert a value to its type; text from outside the file is parsed leniently."""
    if kind is _EmptyTable:
        msgspec.convert(given.value, kind)
        return {}
    if given.origin is ConfigSource.FILE or not isinstance(given.value, str):
        return _finite(msgspec.convert(given.value, kind))
    failure = msgspec.ValidationError("")
    for candidate in _interpretations(given.value, kind):
        try:
            return _finite(msgspec.convert(candidate, kind, strict=False))
        except msgspec.ValidationError as exc:
            failure = exc
    raise failure


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise msgspec.ValidationError("Expected a finite number")
    return value


def _interpretations(text: str, kind: Any) -> Iterator[Any]:
    """Yield the possible meanings of a text, likeliest first."""
    if kind is not Any:
        yield text
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(text)
        # A number may be meant as a string, such as a key; the reader of the table knows the type.
        if kind is not Any or type(found) not in (int, float):
            yield found
    if kind is Any:
        yield text
    else:
        items = [item.strip() for item in text.split(",") if item.strip()]
        yield items
        if all("=" in item for item in items):
            yield dict(item.split("=", 1) for item in items)


def _with_paths(value: Any, kind: Any, base: Path | None) -> Any:
    """Make all paths in a value absolute, including those in nested structs."""
    if _is_path(kind):
        return _resolved(value, base)
    if isinstance(value, dict):
        return {name: _with_paths(item, Any, base) for name, item in value.items()}
    if isinstance(value, Struct):
        fields = msgspec.structs.fields(value)
        parts = {one.name: _with_paths(getattr(value, one.name), one.type, base) for one in fields}
        return msgspec.structs.replace(value, **parts)
    return value


def _resolved(value: Any, base: Path | None) -> Any:
    """Make paths absolute: relative to the config file, or else to the working directory."""
    if not isinstance(value, str):
        return tuple(_resolved(item, base) for item in value)
    return str((base or Path.cwd()) / Path(value).expanduser()) if value else value


# Helpers


def _insert(values: dict[str, Any], key: tuple[str, ...], value: Any) -> None:
    for name in key[:-1]:
        values = values.setdefault(name, {})
    values.setdefault(key[-1], value) if value == {} else values.update({key[-1]: value})


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _is_path(kind: Any) -> bool:
    info = inspect.type_info(kind)
    return isinstance(info, inspect.Metadata) and bool((info.extra or {}).get("path"))


def _nearest(schema: type[Struct], given: _Given) -> str:
    known = [*known_keys(schema), *(section.name for section in msgspec.structs.fields(schema))]
    if len(given.key) == _NAMED_KEY == _key_length(schema, given.key[0]):
        inner = _inner(_field(schema, given.key[0]))
        table = ".".join(given.key[:_SECTION_KEY])
        known = [f"{table}.{field.name}" for field in msgspec.structs.fields(inner)]
    close = difflib.get_close_matches(given.name, known, n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _default(schema: type[Struct], key: tuple[str, ...]) -> str:
    section = _field(schema, key[0])
    if not _is_struct(section) or len(key) < _SECTION_KEY:
        return ""
    return f"its default is {_shown(getattr(section(), key[1]))}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    text = msgspec.json.encode(value, enc_hook=str).decode()
    return f"`{text[:_SHOWN]}…`" if len(text) > _SHOWN else f"`{text}`"
