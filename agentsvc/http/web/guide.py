"""The guide at `/docs/guide/`: the pages of `agentsvc/docs`, which come with the package.

They are open and the same for everybody, load nothing from elsewhere and need no script. Like the
console they are no operations of the API.
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
"""The pages that are not among the others, and where they are in the repository."""
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
    """Add the pages and their style."""
    app.router.add_get(GUIDE_PATH, _to_index)
    app.router.add_get(f"{GUIDE_PATH}/{{name:.*}}", get_page)


@functools.cache
def page_files() -> Mapping[str, Path]:
    """Return the file of each page by its name; what is written elsewhere has a name here, too."""
    pages = {
        file.relative_to(_DOCS).with_suffix("").as_posix(): file
        for file in sorted(_DOCS.rglob(f"*{_SUFFIX}"))
    }
    pages |= {name: _PACKAGE.parent / place for name, place in _ELSEWHERE.items()}
    # In an installed package the plugins are elsewhere.
    installed = _PACKAGE / "_plugins" / "README.md"
    return pages | {"plugins": installed} if installed.exists() else pages


async def get_page(request: web.Request) -> web.Response:
    """GET /docs/guide/{name}: a page, or the style of all."""
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
    """Return where a link of a page leads at the server; None for files that are not served."""
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
    """Return where a page is in the repository, from which its links start."""
    return _ELSEWHERE.get(name, f"agentsvc/docs/{name}{_SUFFIX}")
