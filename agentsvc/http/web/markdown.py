"""Renders the Markdown of the guide as HTML: headings, paragraphs, lists, tables and code. Pure.

It supports only the syntax that the pages use, so the server needs no Markdown library. All text is
escaped: HTML in a page is not passed through.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Final

type Resolve = Callable[[str], str | None]
"""Resolves the target of a link to a URL, or to None if the target is not served."""

_FENCE: Final = "```"
_HEADING: Final = re.compile(r"(#{1,6}) (.+)")
_ITEM: Final = re.compile(r"(-|\d+\.) +")
_RULE: Final = re.compile(r"\|[\s:|-]+\|")
_CELL: Final = re.compile(r"(?<!\\)\|")
_INLINE: Final = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|(?P<image>!)?\[(?P<text>(?:[^\]`]|`[^`]*`)*)\]\((?P<href>[^)\s]+)\)"
    r"|\*\*(?P<strong>.+?)\*\*"
    r"|<(?P<url>https?://[^>\s]+)>"
)
_NO_SLUG: Final = re.compile(r"[^\w\- ]")


def render(text: str, resolve: Resolve) -> str:
    """Render a page as an HTML fragment."""
    return "\n".join(_Page(resolve).blocks(text.splitlines()))


def title_of(text: str) -> str:
    """Return the first heading of a page."""
    found = _HEADING.search(text)
    return found[2] if found else ""


def slug(heading: str) -> str:
    """Return the URL fragment of a heading, in the format of GitHub."""
    return _NO_SLUG.sub("", heading.lower()).replace(" ", "-")


class _Page:
    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve

    def blocks(self, lines: Sequence[str]) -> Iterator[str]:
        """Yield the HTML of each block in the lines."""
        at = 0
        while at < len(lines):
            line = lines[at]
            if not line.strip() or line.startswith("<!--"):
                at += 1
                continue
            end = _end_of(lines, at)
            yield self._block(lines[at:end])
            at = end

    def _block(self, lines: Sequence[str]) -> str:
        first = lines[0]
        if first.startswith(_FENCE):
            # The last line is the closing fence.
            code = "\n".join(lines[1:-1])
            return f"<pre><code>{escape(code, quote=False)}</code></pre>"
        if heading := _HEADING.fullmatch(first):
            level = len(heading[1])
            return f'<h{level} id="{slug(heading[2])}">{self._inline(heading[2])}</h{level}>'
        if first.startswith("|"):
            return self._table(lines)
        if _ITEM.match(first):
            return self._list(lines)
        return f"<p>{self._inline(' '.join(map(str.strip, lines)))}</p>"

    def _table(self, lines: Sequence[str]) -> str:
        rows = [self._row(line) for line in lines if not _RULE.fullmatch(line)]
        head, *body = (
            "".join(f"<{tag}>{cell}</{tag}>" for cell in row)
            for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
        )
        inside = "".join(f"<tr>{row}</tr>\n" for row in body)
        return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{inside}</tbody>\n</table>"

    def _row(self, line: str) -> list[str]:
        cells = _CELL.split(line.strip().removeprefix("|").removesuffix("|"))
        return [self._inline(cell.strip().replace("\\|", "|")) for cell in cells]

    def _list(self, lines: Sequence[str]) -> str:
        tag = "ul" if lines[0].startswith("-") else "ol"
        items: list[list[str]] = []
        indent = 0
        for line in lines:
            if found := _ITEM.match(line):
                indent = found.end()
                items.append([line[indent:]])
            else:
                items[-1].append(line[min(indent, len(line) - len(line.lstrip())) :])
        inside = "".join(f"<li>{self._item(item)}</li>\n" for item in items)
        return f"<{tag}>\n{inside}</{tag}>"

    def _item(self, lines: Sequence[str]) -> str:
        blocks = list(self.blocks(lines))
        # The first paragraph of an item is not wrapped in `<p>`.
        blocks[0] = blocks[0].removeprefix("<p>").removesuffix("</p>")
        return "\n".join(blocks)

    def _inline(self, text: str) -> str:
        parts, at = [], 0
        for found in _INLINE.finditer(text):
            parts += [escape(text[at : found.start()], quote=False), self._span(found)]
            at = found.end()
        return "".join([*parts, escape(text[at:], quote=False)])

    def _span(self, found: re.Match[str]) -> str:
        if found["code"]:
            return f"<code>{escape(found['code'], quote=False)}</code>"
        if found["strong"]:
            return f"<strong>{self._inline(found['strong'])}</strong>"
        if found["url"]:
            return f'<a href="{escape(found["url"])}">{escape(found["url"])}</a>'
        inside = self._inline(found["text"])
        href = None if found["image"] else self._resolve(found["href"])
        return f'<a href="{escape(href)}">{inside}</a>' if href else inside


def _end_of(lines: Sequence[str], at: int) -> int:
    """Return the index after the last line of the block that begins at `at`."""
    first = lines[at]
    end = at + 1
    if first.startswith(_FENCE):
        while end < len(lines) and not lines[end].startswith(_FENCE):
            end += 1
        return end + 1
    if _HEADING.fullmatch(first):
        return end
    if _ITEM.match(first):
        while end < len(lines) and _is_of_list(lines, end):
            end += 1
        return end
    is_table = first.startswith("|")
    while end < len(lines) and lines[end].strip() and lines[end].startswith("|") is is_table:
        if not is_table and (_ITEM.match(lines[end]) or lines[end].startswith((_FENCE, "#"))):
            break
        end += 1
    return end


def _is_of_list(lines: Sequence[str], at: int) -> bool:
    """Whether a line continues the list before it; an empty line does if the next one does."""
    line = lines[at]
    if line.strip():
        return line.startswith("  ") or bool(_ITEM.match(line)) or bool(lines[at - 1].strip())
    after = next((one for one in lines[at:] if one.strip()), "")
    return after.startswith("  ") or bool(_ITEM.match(after))
