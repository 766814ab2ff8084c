"""A recorded terminal session: as an asciicast, and as a picture of its lines that come one by one."""

import codecs
import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate
from typing import Final

from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.style import Style
from rich.text import Text

WIDTH: Final = 100
HEIGHT: Final = 40
LONGEST_PAUSE: Final = 0.8
MAX_FRAMES: Final = 6

_FRAME: Final = r"(?:\r\x1b\[2K)?\x1b\[32m[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]\x1b\[0m \x1b\[2m([^\x1b\r\n]*)\x1b\[0m"
_FRAMES: Final = re.compile(f"(?:{_FRAME})+")
_UNSEEN: Final = re.compile(
    rf"{_FRAME}|\r\n\x1b\[\?25h\r?\x1b\[1A\x1b\[2K|\x1b\[\?25[lh]|\x1b\[\d*[AK]|\r"
)
_COLOURS: Final = {1: "#ff7b72", 2: "#7ee787", 4: "#79c0ff", 5: "#d2a8ff", 6: "#a5d6ff"}
"""By their numbers in the terminal."""

_LETTER: Final = 8.4
_LINE: Final = 19
_MARGIN: Final = 16
_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">
<style>
text {{ font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }}
@media (prefers-reduced-motion: no-preference) {{ text {{ animation: 1ms linear both come }} }}
@keyframes come {{ from {{ visibility: hidden }} to {{ visibility: visible }} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
"""

type Piece = tuple[float, str]


def decoded(parts: Iterable[tuple[float, bytes]]) -> Iterator[Piece]:
    """Yield what was written as text; a letter may come in two parts."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for moment, data in parts:
        if text := decoder.decode(data):
            yield moment, text


def shortened(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield pieces without long pauses, and of whatever turns while something goes on its first turns."""
    at = before = 0.0
    busy, frames = "", 0
    for moment, text in pieces:
        if found := _FRAMES.fullmatch(text):
            frames = frames + 1 if found[1] == busy else 1
            busy = found[1]
            if frames > MAX_FRAMES:
                continue
        at += min(moment - before, LONGEST_PAUSE)
        before = moment
        yield round(at, 3), text


def to_cast(command: Sequence[str], title: str, pieces: Iterable[Piece]) -> str:
    """Return the lines of an asciicast of version 2."""
    head = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": title}
    head["command"] = json.dumps(command)
    return "".join(
        json.dumps(one) + "\n" for one in (head, *([at, "o", text] for at, text in pieces))
    )


def of_cast(text: str) -> tuple[list[str], list[Piece]]:
    """Return the command of an asciicast, and its pieces."""
    head, *lines = map(json.loads, text.splitlines())
    return json.loads(head["command"]), [(at, text) for at, _, text in lines]


def to_picture(pieces: Sequence[Piece], label: str) -> str:
    """Return an SVG that shows each line when it was complete, and all of them in the end."""
    decoder = AnsiDecoder()
    lines = ((at, decoder.decode_line(line)) for at, line in _lines(pieces))
    shown = [(at, row) for at, line in lines for row in _folded(line)]
    width, height = WIDTH * _LETTER + 2 * _MARGIN, len(shown) * _LINE + 2 * _MARGIN
    head = _HEAD.format(width=round(width), height=height, label=escape(label))
    return head + "".join(_drawn(shown)) + "</svg>\n"


def _lines(pieces: Sequence[Piece]) -> Iterator[Piece]:
    whole = "".join(text for _, text in pieces)
    ends = list(accumulate(len(text) for _, text in pieces))
    hidden = _UNSEEN.sub(lambda found: "\0" * len(found[0]), whole)
    place = 0
    for line in hidden.rstrip("\0\n").split("\n"):
        place = min(place + len(line) + 1, ends[-1])
        yield pieces[bisect_left(ends, place)][0], line.replace("\0", "").rstrip()


def _folded(line: Text) -> Iterable[Text]:
    """Return a line as a terminal of this width shows it."""
    return line.divide(range(WIDTH, len(line), WIDTH))


def _drawn(rows: Iterable[tuple[float, Text]]) -> Iterator[str]:
    console = Console(width=WIDTH)
    for number, (at, row) in enumerate(rows):
        y = _MARGIN + _LINE * number + 14
        parts = (part for part in row.render(console) if part.text)
        spans = "".join(
            f"<tspan{_look(part.style)}>{escape(part.text, quote=False)}</tspan>" for part in parts
        )
        yield f'<text x="{_MARGIN}" y="{y}" style="animation-delay:{at}s">{spans}</text>\n'


def _look(style: Style | None) -> str:
    if style is None:
        return ""
    colour = _COLOURS.get(style.color.number or 0, "") if style.color else ""
    rules = {"fill": colour or "#8b949e" * bool(style.dim), "font-weight": "700" * bool(style.bold)}
    return f' style="{"; ".join(f"{name}: {value}" for name, value in rules.items() if value)}"'
