"""The guide at `/docs/guide/`: serves the pages of `agentsvc/docs`, which are in the package.

The pages need no key, load nothing from other origins and use no scripts. Like the console they are
not operations of the API.
"""

import asyncio
import functools
import posixpath
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Final

from aiohttp import web

import agentsvc
from agentsvc.http.openapi.handlers import Document, answer_document, to_document
from agentsvc.http.routes import HTML
from agentsvc.http.web.markdown import render, title_of

GUIDE_PATH: Final = "/docs/guide"

_PACKAGE: Final = Path(agentsvc.__file__).parent
_DOCS: Final = _PACKAGE / "docs"
_ELSEWHERE: Final = {
    "security": "agentsvc/SECURITY.md",
    "changes": "agentsvc/CHANGES.md",
    "plugins": "plugins/README.md",
}
"""Pages outside of `agentsvc/docs`, with their paths in the repository."""
_INDEX: Final = "index"
_STYLE: Final = "guide.css"
_SUFFIX: Final = ".md"

_FRAME: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} · agentsvc</title>
<link rel="icon" href="{up}../icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{up}guide.css">
</head>
<body>
<nav><a href="{up}./">agentsvc guide</a> <a href="{up}../../docs">API</a> <a href="{up}../../">Console</a></nav>
<main>
{body}
</main>
</body>
</html>
"""


def mount_guide(app: web.Application) -> None:
    """Add the routes of the pages and their style sheet."""
    app.router.add_get(GUIDE_PATH, _to_index)
    app.router.add_get(f"{GUIDE_PATH}/{{name:.*}}", get_page)


@functools.cache
def page_files() -> Mapping[str, Path]:
    """Return the files of all pages by name, including those outside of `agentsvc/docs`."""
    pages = {
        file.relative_to(_DOCS).with_suffix("").as_posix(): file
        for file in sorted(_DOCS.rglob(f"*{_SUFFIX}"))
    }
    pages |= {name: _PACKAGE.parent / place for name, place in _ELSEWHERE.items()}
    # An installed package has the plugins in `_plugins`.
    installed = _PACKAGE / "_plugins" / "README.md"
    return pages | {"plugins": installed} if installed.exists() else pages


async def get_page(request: web.Request) -> web.Response:
    """GET /docs/guide/{name}: a page, or the style sheet."""
    name = request.match_info["name"] or _INDEX
    if name == _STYLE:
        body = await asyncio.to_thread((_DOCS / _STYLE).read_bytes)
        return answer_document(request, to_document(body), "text/css")
    document = await asyncio.to_thread(_read_page, name)
    if document is None:
        raise web.HTTPNotFound
    return answer_document(request, document, HTML)


async def _to_index(request: web.Request) -> web.Response:
    raise web.HTTPPermanentRedirect("guide/")


def _read_page(name: str) -> Document | None:
    file = page_files().get(name)
    if file is None:
        return None
    text = file.read_text("utf-8")
    up = "../" * name.count("/")
    body = render(text, functools.partial(_address, name))
    return to_document(_FRAME.format(title=escape(title_of(text)), up=up, body=body).encode())


def _address(name: str, target: str) -> str | None:
    """Resolve a link of a page to a URL of the server; None for files that are not served."""
    if target.startswith(("https://", "http://", "#")):
        return target
    path, mark, fragment = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(_place_of(name)), path))
    found = next((one for one in page_files() if _place_of(one) == wanted), None)
    if found is None:
        return None
    up = "../" * name.count("/")
    return f"{up}{'./' if found == _INDEX else found}{mark}{fragment}"


def _place_of(name: str) -> str:
    """Return the path of a page in the repository, to which its links are relative."""
    return _ELSEWHERE.get(name, f"agentsvc/docs/{name}{_SUFFIX}")
