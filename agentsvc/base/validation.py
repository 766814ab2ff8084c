"""Validation errors: every invalid field of a decoded value, its location, and the allowed values.

Decoders stop at the first invalid field. So only after a decoder has rejected a value, the value is
traversed along its type, and all problems are described: with JSON's names of types, with bounds and
allowed values, and without Python's terms.
"""

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeAliasType,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

import msgspec
from msgspec import Meta, Struct, UnsetType

from agentsvc.base.errors import InvalidRequest, Problem

type Loc = tuple[str | int, ...]
type DecHook = Callable[[type, Any], Any]

_MAX_VISITS: Final = 4_000
"""The maximum number of visited values; further problems are not reported."""

_MAX_DEPTH: Final = 60
"""The maximum depth of visited values, deeper than any type that is not recursive."""

_MAX_VALUES: Final = 100
"""The maximum number of allowed values in a message."""

_MAX_IN_TEXT: Final = 10
"""The maximum number of problems in one line."""

_WORDS: Final = "words"
_CHECK: Final = "check"

_NAMES: Final[dict[type, str]] = {
    dict: "object",
    list: "array",
    tuple: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    types.NoneType: "null",
}
"""JSON's names of Python types; every other type is a string in JSON."""

_KINDS: Final = {
    "object": "dict_type",
    "array": "list_type",
    "string": "string_type",
    "boolean": "bool_type",
    "integer": "int_type",
    "number": "float_type",
    "null": "none_required",
}
"""The types of problems, as published clients know them, by the expected type."""

_BOUNDS: Final = {
    "ge": "greater_than_equal",
    "gt": "greater_than",
    "le": "less_than_equal",
    "lt": "less_than",
    "multiple_of": "multiple_of",
    "pattern": "string_pattern_mismatch",
    "min_length": "too_short",
    "max_length": "too_long",
}
_OTHER_BOUNDS: Final = {
    "gt": "greater than",
    "lt": "less than",
    "multiple_of": "that is a multiple of",
}
"""The words for bounds that are not part of a range."""
_ALL: Final = (Any, msgspec.Raw)
"""The types that accept every value."""

_UNITS: Final = {"string": "characters", "array": "items", "object": "members"}


# Annotations of types beyond msgspec's own


def matching(
    pattern: str, words: str, *, min_length: int | None = None, max_length: int | None = None
) -> Meta:
    """Return a constraint by a pattern; messages have the words after "Expected `string`"."""
    extra = {_WORDS: words}
    return Meta(pattern=pattern, extra=extra, min_length=min_length, max_length=max_length)


def with_check(check: Callable[..., object]) -> Meta:
    """Return an annotation with a check that is applied to the decoded value.

    The check gets the decoded value and its location as `loc`, and raises InvalidRequest. It is
    also called if another part of the body is invalid, so that both are reported at once.
    """
    return Meta(extra={_CHECK: check})


# Functions for other modules


class Problems:
    """Collects the problems of several parts of a value that are validated one by one."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Collect an InvalidRequest that the body raises, and continue."""
        try:
            yield
        except InvalidRequest as exc:
            self._found += exc.problems

    def note(self, text: str, *, loc: Sequence[str | int]) -> None:
        """Add one problem."""
        self._found.append(Problem(type="value_error", loc=tuple(loc), msg=text))

    def refuse(self) -> None:
        """Raise InvalidRequest if there is any problem."""
        if self._found:
            raise InvalidRequest.of(self._found)


def convert[T](
    raw: Any,
    kind: type[T],
    *,
    loc: Sequence[str | int],
    strict: bool = True,
    dec_hook: DecHook | None = None,
) -> T:
    """Convert decoded JSON to a type; raises InvalidRequest with all problems.

    Unless `strict`, texts are accepted for numbers and the like, as in a query.
    """
    try:
        return msgspec.convert(raw, kind, strict=strict, dec_hook=dec_hook)
    except msgspec.ValidationError as exc:
        raise refusal(raw, kind, loc=loc, strict=strict, dec_hook=dec_hook) from exc


def refusal(
    value: Any,
    kind: Any,
    *,
    loc: Sequence[str | int],
    strict: bool = True,
    dec_hook: DecHook | None = None,
) -> InvalidRequest:
    """Return the error with all problems of a value that a decoder has rejected."""
    search = _Search(strict=strict, dec_hook=dec_hook)
    search.check(value, kind, tuple(loc))
    if not search.problems:
        return InvalidRequest("The value does not match its type in the API description", loc=loc)
    return InvalidRequest.of(search.problems, is_all=search.is_all)


def in_text(error: InvalidRequest) -> str:
    """Return the problems on one line, for responses without a list of them."""
    texts = (
        f"{'.'.join(str(step) for step in one.loc if step != 'body')}: {one.msg}".removeprefix(": ")
        for one in error.problems[:_MAX_IN_TEXT]
    )
    left_out = len(error.problems) - _MAX_IN_TEXT
    return "; ".join(texts) + (f"; and {left_out} more" if left_out > 0 else "")


# Traversal of a value


class _Option(NamedTuple):
    """One of the types that a value may have, with its constraints."""

    kind: Any
    metas: tuple[Meta, ...]


class _Search:
    """Collects the problems of one value."""

    def __init__(self, *, strict: bool, dec_hook: DecHook | None) -> None:
        self.problems: list[Problem] = []
        self.is_all = True
        self._strict = strict
        self._dec_hook = dec_hook
        self._visits = 0

    def check(self, value: Any, kind: Any, loc: Loc) -> None:
        """Collect the problems of a value and of its members."""
        self._visits += 1
        if self._visits > _MAX_VISITS or len(loc) > _MAX_DEPTH:
            self.is_all = False
            return
        options = list(_options(kind))
        before = len(self.problems)
        if not any(option.kind in _ALL for option in options):
            self._check(value, options, loc)
        check = _check_of(options)
        is_nothing = value is None and any(one.kind is types.NoneType for one in options)
        if check is not None and not is_nothing and len(self.problems) == before:
            self._run(check, value, loc)

    def _check(self, value: Any, options: list[_Option], loc: Loc) -> None:
        taking = [option for option in options if self._matches_type(value, option.kind)]
        first = taking[0] if taking else None
        match first:
            case None:
                self._add(*_wrong_type(value, options, is_text=self._is_text(value)), loc)
            case _ if _is_struct(first.kind):
                self._check_struct(value, [option.kind for option in taking], loc)
            case _ if isinstance(value, dict):
                self._check_map(value, first, options, loc)
            case _ if isinstance(value, list):
                self._check_list(value, first, options, loc)
            case _:
                self._check_leaf(value, first, options, loc)

    def _check_struct(self, value: dict[str, Any], kinds: list[Any], loc: Loc) -> None:
        if len(kinds) > 1:
            kinds = self._chosen(value, kinds, loc)
        for kind in kinds:
            self._check_members(value, kind, loc)

    def _chosen(self, value: dict[str, Any], kinds: list[Any], loc: Loc) -> list[Any]:
        """Return the struct that the tag selects; empty if the tag is missing or unknown."""
        tags = {kind.__struct_config__.tag: kind for kind in kinds}
        name = kinds[0].__struct_config__.tag_field
        tag = value.get(name)
        if name not in value:
            self._add("missing", "Field required", (*loc, name))
        elif not isinstance(tag, str | int) or tag not in tags:
            self._add("enum", f"Expected one of {_listed(tuple(tags))}", (*loc, name))
        return [tags[tag]] if isinstance(tag, str | int) and tag in tags else []

    def _check_members(self, value: dict[str, Any], kind: type[Struct], loc: Loc) -> None:
        config = kind.__struct_config__
        fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
        for name, field in fields.items():
            if name in value:
                self.check(value[name], field.type, (*loc, name))
            elif field.required:
                self._add("missing", "Field required", (*loc, name))
        if config.forbid_unknown_fields:
            text = f"Extra inputs are not permitted, only {_listed(tuple(fields))}"
            for name in value.keys() - fields.keys() - {config.tag_field}:
                self._visits += 1
                if self._visits > _MAX_VISITS:
                    self.is_all = False
                    break
                self._add("extra_forbidden", text, (*loc, name))

    def _check_map(
        self, value: dict[str, Any], option: _Option, options: list[_Option], loc: Loc
    ) -> None:
        self._check_bounds(value, dict, option, options, loc)
        of_key, of_value = get_args(option.kind) or (Any, Any)
        if self._fits(value, option.kind) and not (_is_checked(of_key) or _is_checked(of_value)):
            return
        for name, one in value.items():
            if self._visits > _MAX_VISITS:
                break
            self.check(name, of_key, (*loc, name))
            self.check(one, of_value, (*loc, name))

    def _check_list(
        self, value: list[Any], option: _Option, options: list[_Option], loc: Loc
    ) -> None:
        self._check_bounds(value, list, option, options, loc)
        [of_item, *_] = get_args(option.kind) or (Any,)
        if not _is_checked(of_item) and (_takes_all(of_item) or self._fits(value, option.kind)):
            return
        for index, one in enumerate(value):
            if self._visits > _MAX_VISITS:
                break
            self.check(one, of_item, (*loc, index))

    def _check_leaf(self, value: Any, option: _Option, options: list[_Option], loc: Loc) -> None:
        kind = option.kind
        if self._fits(value, kind):
            self._check_bounds(value, kind, option, options, loc)
        elif kind is UUID:
            self._add("uuid_parsing", "Input should be a valid UUID", loc)
        elif _allowed(kind):
            self._add("enum", _expected(options), loc)
        elif isinstance(kind, type) and kind not in _NAMES:
            self._add("value_error", self._hook_message(value, kind), loc)
        else:
            self._add(*_wrong_type(value, options, is_text=self._is_text(value)), loc)

    def _check_bounds(
        self, value: Any, kind: Any, option: _Option, options: list[_Option], loc: Loc
    ) -> None:
        for name, bound in _bounds(option):
            if not self._fits(value, Annotated[kind, Meta(**{name: bound})]):
                prefix = "string_" if isinstance(value, str) and name.endswith("_length") else ""
                self._add(prefix + _BOUNDS[name], _expected(options), loc)
                return

    def _matches_type(self, value: Any, kind: Any) -> bool:
        if self._is_text(value):
            return _name(kind) not in ("array", "object")
        name = _NAMES[type(value)]
        allowed = _allowed(kind)
        if allowed:
            return name in {_NAMES[type(one)] for one in allowed}
        return name == _name(kind) or (name == "integer" and kind is float)

    def _is_text(self, value: Any) -> bool:
        """Return whether a text may represent another type, as in a query."""
        return not self._strict and isinstance(value, str)

    def _fits(self, value: Any, kind: Any) -> bool:
        try:
            msgspec.convert(value, kind, strict=self._strict, dec_hook=self._dec_hook)
        except msgspec.ValidationError:
            return False
        return True

    def _hook_message(self, value: Any, kind: type) -> str:
        try:
            msgspec.convert(value, kind, dec_hook=self._dec_hook)
        except msgspec.ValidationError as exc:
            return str(exc)
        return "The value is not valid"

    def _run(self, check: Callable[..., object], value: Any, loc: Loc) -> None:
        try:
            check(value, loc=loc)
        except InvalidRequest as exc:
            self.problems += exc.problems

    def _add(self, kind: str, text: str, loc: Loc) -> None:
        self.problems.append(Problem(type=kind, loc=loc, msg=text))


# Inspection of types


def _options(kind: Any, metas: tuple[Meta, ...] = ()) -> Iterator[_Option]:
    """Yield every type that a value may have, except UNSET."""
    if isinstance(kind, TypeAliasType):
        yield from _options(kind.__value__, metas)
    elif get_origin(kind) is Annotated:
        own = tuple(meta for meta in kind.__metadata__ if isinstance(meta, Meta))
        yield from _options(kind.__origin__, (*own, *metas))
    elif get_origin(kind) in (Union, types.UnionType):
        for part in get_args(kind):
            yield from _options(part, metas)
    elif kind is not UnsetType:
        yield _Option(kind=kind, metas=metas)


def _check_of(options: list[_Option]) -> Callable[..., object] | None:
    for option in options:
        for meta in option.metas:
            if meta.extra and _CHECK in meta.extra:
                check: Callable[..., object] = meta.extra[_CHECK]
                return check
    return None


def _is_checked(kind: Any) -> bool:
    return _check_of(list(_options(kind))) is not None


def _takes_all(kind: Any) -> bool:
    return any(option.kind in _ALL for option in _options(kind))


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _name(kind: Any) -> str:
    """Return JSON's name of a type."""
    if _is_struct(kind):
        return "object"
    allowed = _allowed(kind)
    origin = get_origin(kind) or kind
    return _NAMES[type(allowed[0])] if allowed else _NAMES.get(origin, "string")


def _allowed(kind: Any) -> tuple[Any, ...]:
    """Return the values of an enum or of literals; empty for other types."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return tuple(member.value for member in kind)
    return ()


def _bounds(option: _Option) -> Iterator[tuple[str, Any]]:
    for meta in option.metas:
        for name in _BOUNDS:
            bound = getattr(meta, name)
            if bound is not None:
                yield name, bound


# Messages


def _wrong_type(value: Any, options: list[_Option], *, is_text: bool) -> tuple[str, str]:
    """Return the type and the message of a problem; a query's text has no type to name."""
    expected = next((one.kind for one in options if one.kind is not types.NoneType), None)
    kind = "enum" if _allowed(expected) else _KINDS[_name(expected)]
    text = _expected(options, is_whole=False)
    return kind, text if is_text else f"{text}, got `{_NAMES[type(value)]}`"


def _expected(options: list[_Option], *, is_whole: bool = True) -> str:
    """Describe the valid values; with their bounds unless only the type is wrong."""
    words: list[str] = []
    null = ["`null`"] if any(option.kind is types.NoneType for option in options) else []
    for option in options:
        allowed = _allowed(option.kind)
        if allowed:
            words.append(f"one of {_listed(allowed)}")
        elif option.kind is not types.NoneType:
            words.append(f"`{_name(option.kind)}`{_constraints(option) if is_whole else ''}")
    # The constraints of a text come last, so that it is clear what they apply to.
    words = [*null, *words] if is_whole else [*words, *null]
    return f"Expected {' or '.join(dict.fromkeys(words))}"


def _listed(values: tuple[Any, ...]) -> str:
    shown = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in values]
    listed = ", ".join(f"`{one}`" for one in shown[:_MAX_VALUES])
    return listed if len(shown) <= _MAX_VALUES else f"{listed} and others"


def _constraints(option: _Option) -> str:
    """Describe the constraints of a type."""
    bounds = dict(_bounds(option))
    unit = _UNITS.get(_name(option.kind), "")
    if unit:
        texts = [_range(bounds.get("min_length"), bounds.get("max_length"), f" {unit}")]
    else:
        texts = [_range(bounds.get("ge"), bounds.get("le"), "", word="from")]
        texts += [
            f" {words} {bounds[name]}" for name, words in _OTHER_BOUNDS.items() if name in bounds
        ]
    texts += [f" {one.extra[_WORDS]}" for one in option.metas if one.extra and _WORDS in one.extra]
    return "".join(texts)


def _range(minimum: Any, maximum: Any, unit: str, *, word: str = "of") -> str:
    if minimum is not None and maximum is not None:
        return f" {word} {minimum} to {maximum}{unit}"
    if minimum is not None:
        return f" of at least {minimum}{unit}"
    return "" if maximum is None else f" of at most {maximum}{unit}"
