"""The files of the pages that people see in a browser; read once, when they are first asked for."""

import functools
from importlib import resources
from string import Template


@functools.cache
def page(name: str) -> Template:
    """Return the template of a page; what is put in has to be escaped."""
    return Template(text_of(name))


@functools.cache
def text_of(name: str) -> str:
    """Return the text of a file."""
    return (resources.files(__name__) / name).read_text(encoding="utf-8")
