"""Calls to git hosts as tables say them: paths with places, and parts of what is answered. Pure.

In a path, `{number}` is a place for a value, which is quoted; `{+file}` keeps its slashes, and `{repo}` is
where a repository is. In the query behind it values stand as they are, and what comes out empty is left out.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from agentsvc.base import InvalidRequest
from agentsvc.git.client import Value

INSTALLATION_LOC: Final = ("query", "installation_id")
PATH_LOC: Final = ("query", "file_path")

type Part = str | Callable[[Any], Any]
"""A part of an answer, `head.repo.full_name`, or the first there is of `nickname|name`; or what finds it."""

_PLACE: Final = re.compile(r"\{(\+?)(\w+)\}")


def quoted(text: str, loc: Sequence[str | int] = INSTALLATION_LOC) -> str:
    """Return a text as one part of a path; raises InvalidRequest for one that leads elsewhere."""
    if text in {"", ".", ".."}:
        raise InvalidRequest("Input should be a name", loc=loc)
    return quote(text, safe="")


def quoted_path(path: str) -> str:
    """Return the path of a file with its parts quoted; raises InvalidRequest."""
    return "/".join(quoted(part, PATH_LOC) for part in path.split("/"))


class Lookup(msgspec.Struct, frozen=True):
    """Where something is found, and what its parts are called here and there."""

    path: str
    parts: Mapping[str, Part] = {}
    when: Mapping[str, str] = {}
    """Values that parts have to have for a thing to count."""
    items: str = ""
    """The part of an answer that is looked for, if it is not all of it."""

    def fitting(self, items: list[Any]) -> list[Any]:
        """Return the things that count."""
        return [
            one
            for one in items
            if all(part_of(one, name) == text for name, text in self.when.items())
        ]


def parts[T](names: str, **more: T) -> Mapping[str, str | T]:
    """Return what parts are called here and at a host: `text=body`, or `title` if that is the same."""
    pairs = (name.partition("=") for name in names.split())
    return {**{name: place or name for name, _, place in pairs}, **more}


def case(place: str, names: Mapping[str, Any], otherwise: Any) -> Part:
    """Return a part that stands for something else, by what it is as a text."""
    return lambda value: names.get(part_of(value, place), otherwise)


def resolve(
    path: str,
    values: Mapping[str, str],
    repo: str = "",
    *,
    quoting: Callable[[str], str] = quoted,
) -> tuple[str, dict[str, Value]]:
    """Return a path, and its query, with values in their places."""
    path, _, asked = path.partition("?")
    pairs = (pair.partition("=") for pair in asked.split("&"))
    query = {name: text.format_map(values) for name, _, text in pairs}

    def put(place: re.Match[str]) -> str:
        value = values[place[2]]
        return quoted_path(value) if place[1] else quoting(value)

    given: dict[str, Value] = {name: text for name, text in query.items() if text}
    return _PLACE.sub(put, path.replace("{repo}", repo)), given


def find_part(payload: Any, steps: list[str]) -> Any:
    """Return a part of a payload by the names that lead to it, or None."""
    found = payload
    for step in steps:
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step[:9]) < len(found):
            found = found[int(step[:9])]
        else:
            return None
    return found


def find(value: Any, part: Part) -> Any:
    """Return a part of an answer, None if there is none."""
    if not isinstance(part, str):
        return part(value)
    found = None
    for place in part.split("|"):
        if found := find_part(value, place.split(".")):
            break
    return found


def part_of(value: Any, place: Part) -> str:
    """Return a part of an answer as a text; a list of named things as their names."""
    found = find(value, place)
    if isinstance(found, list):
        return "\n".join(as_text(_name_of(one)) for one in found)
    return as_text(found)


def as_text(value: Any) -> str:
    """Return a part of a payload as a text: empty for none, JSON for what is no text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _name_of(one: Any) -> Any:
    if isinstance(one, str):
        return one
    return find_part(one, ["name" if isinstance(one, dict) and "name" in one else "title"])
