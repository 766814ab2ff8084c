"""Microagents: texts in a repository with knowledge for agents, and their triggers. Pure."""

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from agentsvc.domain import Provider
from agentsvc.git.model import File

EXTENSION: Final = ".md"
MICROAGENT_MAX: Final = 256 * 1024
"""Maximum length of a microagent: a longer one is slow to parse, and too long for an agent."""

_OWN_REPOSITORY: Final = ".openhands"
_OWN_REPOSITORY_AT_GITLAB: Final = "openhands-config"
_HEAD: Final = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
_TRIGGERS: Final = re.compile(
    r"^triggers:[ \t]*(?P<inline>\[[^\]]*\])?[ \t]*\r?\n?(?P<lines>(?:[ \t]*-[ \t]+.*(?:\r?\n|\Z))*)",
    re.MULTILINE,
)


class MicroagentFile(Struct, frozen=True, kw_only=True):
    """The text of a microagent, and the words that trigger it."""

    content: str
    triggers: list[str]


def directory_of(repository: str, provider: Provider) -> str:
    """Return the directory of a repository's microagents."""
    at_gitlab = provider is Provider.GITLAB
    name = repository.removesuffix(".git").rpartition("/")[2]
    is_own = name == (_OWN_REPOSITORY_AT_GITLAB if at_gitlab else _OWN_REPOSITORY)
    return "microagents" if is_own else ".openhands/microagents"


def microagents_in(files: Iterable[File]) -> list[File]:
    """Return the files that are microagents, named without their extension, sorted."""
    found = [
        File(name=one.name.removesuffix(EXTENSION), path=one.path)
        for one in files
        if one.name.endswith(EXTENSION) and one.name.lower() != "readme.md"
    ]
    return sorted(found, key=lambda one: one.name)


def read_microagent(text: str) -> MicroagentFile:
    """Parse a microagent: its text without the front matter, and the triggers in that."""
    head = _HEAD.match(text)
    if head is None:
        return MicroagentFile(content=text, triggers=[])
    return MicroagentFile(content=text[head.end() :].strip(), triggers=_triggers(head.group(1)))


def _triggers(head: str) -> list[str]:
    found = _TRIGGERS.search(head)
    if found is None:
        return []
    inline = (found["inline"] or "[]")[1:-1].split(",")
    lines = (line.strip().removeprefix("-") for line in found["lines"].splitlines())
    words = (word.strip().strip("\"'") for word in (*inline, *lines))
    return [word for word in words if word]
