"""Tables of calls to git hosts: paths with placeholders, and parts of responses. Pure.

In a path, `{number}` is a placeholder for a value, which is percent-encoded; `{+file}` keeps its slashes,
and `{repo}` is the path of a repository. In the query string values are encoded later, and empty parameters
are omitted.
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
"""A part of a response: `head.repo.full_name`, the first of `nickname|name`, or a function."""

_PLACEHOLDER: Final = re.compile(r"\{(\+?)(\w+)\}")


def quoted(text: str, loc: Sequence[str | int] = INSTALLATION_LOC) -> str:
    """Percent-encode a text as one part of a path; raises InvalidRequest if empty, `.` or `..`."""
    if text in {"", ".", ".."}:
        raise InvalidRequest("Input should be a name", loc=loc)
    return quote(text, safe="")


def quoted_path(path: str) -> str:
    """Percent-encode the parts of a file's path; raises InvalidRequest."""
    return "/".join(quoted(part, PATH_LOC) for part in path.split("/"))


class Lookup(msgspec.Struct, frozen=True):
    """The path of a call, and the host's names of the parts of its response."""

    path: str
    parts: Mapping[str, Part] = {}
    when: Mapping[str, str] = {}
    """Required values of parts; other items are ignored."""
    items: str = ""
    """The part of a response that is the list; empty for the whole response."""

    def fitting(self, items: list[Any]) -> list[Any]:
        """Return the items that have the required values."""
        return [
            one
            for one in items
            if all(part_of(one, name) == text for name, text in self.when.items())
        ]


def parts[T](names: str, **more: T) -> Mapping[str, str | T]:
    """Parse pairs of our name and the host's: `text=body`, or `title` if both are equal."""
    pairs = (name.partition("=") for name in names.split())
    return {**{name: place or name for name, _, place in pairs}, **more}


def case(place: str, names: Mapping[str, Any], otherwise: Any) -> Part:
    """Return a part that maps the text of another part to a value."""
    return lambda value: names.get(part_of(value, place), otherwise)


def resolve(
    path: str,
    values: Mapping[str, str],
    repo: str = "",
    *,
    quoting: Callable[[str], str] = quoted,
) -> tuple[str, dict[str, Value]]:
    """Return a path and its query parameters, with the placeholders replaced by values."""
    path, _, query_text = path.partition("?")
    pairs = (pair.partition("=") for pair in query_text.split("&"))
    query = {name: text.format_map(values) for name, _, text in pairs}

    def substitute(place: re.Match[str]) -> str:
        value = values[place[2]]
        return quoted_path(value) if place[1] else quoting(value)

    parameters: dict[str, Value] = {name: text for name, text in query.items() if text}
    return _PLACEHOLDER.sub(substitute, path.replace("{repo}", repo)), parameters


def find_part(payload: Any, steps: list[str]) -> Any:
    """Return the part of a payload at a path of names and indexes, or None."""
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
    """Return a part of a response, or None if it does not exist."""
    if not isinstance(part, str):
        return part(value)
    found = None
    for place in part.split("|"):
        if found := find_part(value, place.split(".")):
            break
    return found


def part_of(value: Any, place: Part) -> str:
    """Return a part of a response as a text; a list becomes lines, named objects their names."""
    found = find(value, place)
    if isinstance(found, list):
        return "\n".join(as_text(_name_of(one)) for one in found)
    return as_text(found)


def as_text(value: Any) -> str:
    """Return a value as a text: empty for None, JSON for anything but a string."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _name_of(one: Any) -> Any:
    if isinstance(one, str):
        return one
    return find_part(one, ["name" if isinstance(one, dict) and "name" in one else "title"])
