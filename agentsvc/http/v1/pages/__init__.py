"""The page of the device login; its files are read once, on first use."""

import functools
import html
from importlib import resources
from string import Template
from typing import Final

from aiohttp import web

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def answer_page(status: int, **values: str) -> web.Response:
    """Return the page with its values, HTML-escaped, filled in."""
    shown = {name: html.escape(value) for name, value in values.items()}
    text = Template(_text("verify.html")).substitute(shown)
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def answer_style() -> web.Response:
    """Return the style sheet of the page."""
    return web.Response(text=_text("verify.css"), content_type="text/css", headers=_HEADERS)


@functools.cache
def _text(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
