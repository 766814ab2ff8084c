"""The console: the files of the web page at `/`, read once, as a browser gets them.

What is in `static` is what is sent; `static/vendor` is written by the build in `libraries`. All files but the page itself have addresses with
a tag made of what is in them, so that a browser may keep them for good and never mixes two versions.
"""

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Final

import msgspec

_PAGE: Final = "index.html"
_TAG: Final = "{tag}"
_MEDIA: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
"""The media types of what browsers get; files of other types are for readers of the source."""


class StaticFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it is sent."""

    body: bytes
    packed: bytes
    """The body, compressed with gzip."""
    media: str


class Console(msgspec.Struct, frozen=True, kw_only=True):
    """The page, and its parts by their paths; `tag` changes with any of them."""

    page: bytes
    parts: dict[str, StaticFile]
    tag: str


@functools.cache
def read_console() -> Console:
    """Return the files of the console; they are read when somebody first asks for them."""
    root = Path(__file__).parent / "static"
    files = [file for file in root.rglob("*") if file.suffix in _MEDIA]
    parts = {file.relative_to(root).as_posix(): _packed(file) for file in files}
    page = (root / _PAGE).read_bytes()
    digest = hashlib.sha256(page)
    for path, file in sorted(parts.items()):
        digest.update(b"%b\0%d\0%b" % (path.encode(), len(file.body), file.body))
    tag = digest.hexdigest()[:16]
    return Console(page=page.replace(_TAG.encode(), tag.encode()), parts=parts, tag=tag)


def _packed(file: Path) -> StaticFile:
    body = file.read_bytes()
    # Without a time in it, so that the same file gives the same bytes.
    return StaticFile(body=body, packed=gzip.compress(body, mtime=0), media=_MEDIA[file.suffix])
