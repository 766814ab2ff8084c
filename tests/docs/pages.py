"""The pages that people read, and what is in them: headings, links, blocks of code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from agentsvc.http.web.guide import page_files
from agentsvc.http.web.markdown import slug

TOP: Final = Path(__file__).parents[2]
DOCS: Final = TOP / "agentsvc" / "docs"
README: Final = TOP / "README.md"
PAGES: Final = {
    "README": README,
    **page_files(),
    "SCALE": TOP / "plugins" / "kubernetes" / "SCALE.md",
}
"""The file of each page by its name in the guide, and two that are not in it."""

_BLOCK: Final = re.compile(
    r"(?:<!-- run: (?P<name>[\w-]+) -->\n)?^```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK: Final = re.compile(r"\[(?:[^\]`]|`[^`]*`)*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_CODE: Final = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")


class Block(NamedTuple):
    """A block of code in a page."""

    page: str
    kind: str
    code: str
    name: str | None = None


def text_of(page: str) -> str:
    return PAGES[page].read_text("utf-8")


def prose_of(page: str) -> str:
    """Return a page without its blocks of code."""
    return _BLOCK.sub("", text_of(page))


def blocks(*kinds: str) -> list[Block]:
    """Return the blocks of all pages that are of these kinds."""
    return [block for page in PAGES for block in blocks_of(page) if block.kind in kinds]


def blocks_of(page: str) -> Iterator[Block]:
    for found in _BLOCK.finditer(text_of(page)):
        yield Block(page, found["kind"], found["code"], found["name"])


def links_of(page: str) -> list[str]:
    return _LINK.findall(prose_of(page))


def anchors_of(file: Path) -> set[str]:
    return {slug(one) for one in _HEADING.findall(_BLOCK.sub("", file.read_text("utf-8")))}


def codes_of(page: str) -> list[str]:
    """Return what is set as code in the text of a page, each on one line."""
    return [" ".join(one.split()) for one in _CODE.findall(prose_of(page))]
