"""The console: the static files of the web page at `/`, read once.

The files in `static` are served unchanged; the build in `libraries` writes `static/vendor`. The
URLs of all files except the page contain a hash of all contents, so that browsers can cache them
forever and never mix two versions.
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
"""Media types of served files by suffix; other files are only for readers of the source."""


class StaticFile(msgspec.Struct, frozen=True, kw_only=True):
    """A static file."""

    body: bytes
    packed: bytes
    """The body, compressed with gzip."""
    media: str


class Console(msgspec.Struct, frozen=True, kw_only=True):
    """The page, and the other files by path; `tag` is a hash of all of them."""

    page: bytes
    parts: dict[str, StaticFile]
    tag: str


@functools.cache
def read_console() -> Console:
    """Return the files of the console, read on first use."""
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
    # Without a modification time, so that the same file always gives the same bytes.
    return StaticFile(body=body, packed=gzip.compress(body, mtime=0), media=_MEDIA[file.suffix])
