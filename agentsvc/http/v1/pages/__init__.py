"""The pages that people see in a browser; their files are read once, when they are first asked for."""

import functools
import html
from importlib import resources
from string import Template
from typing import Final

import msgspec
from aiohttp import web

_FRAME: Final = "frame.html"
_STYLE: Final = "verify.css"
_POLICY: Final = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)


class FormPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page with a form; `style` is where its style sheet is, below the page's own folder."""

    title: str
    style: str
    referrer: str
    """What is told of the page's address when the form is sent."""

    def answer(
        self, inside: str, message: str, *, status: int = 200, **values: str
    ) -> web.Response:
        """Return the page with a message, and the file that is inside it filled in."""
        filled = _template(inside).substitute(_escaped(values))
        shown = _escaped({"title": self.title, "style": self.style, "message": message})
        return web.Response(
            text=_template(_FRAME).substitute(shown, inside=filled),
            status=status,
            content_type="text/html",
            headers=self._headers,
        )

    def answer_style(self) -> web.Response:
        """Return the style sheet."""
        return web.Response(text=_text(_STYLE), content_type="text/css", headers=self._headers)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Content-Security-Policy": _POLICY, "Referrer-Policy": self.referrer}


def _escaped(values: dict[str, str]) -> dict[str, str]:
    return {name: html.escape(value) for name, value in values.items()}


@functools.cache
def _template(name: str) -> Template:
    return Template(_text(name))


@functools.cache
def _text(name: str) -> str:
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
