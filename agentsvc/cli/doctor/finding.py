"""The result of one check of `agentsvc doctor`."""

from enum import StrEnum

import msgspec


class Grade(StrEnum):
    """How it is: fine, worth knowing, or to be mended."""

    FINE = "fine"
    NOTE = "note"
    BAD = "bad"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at; `remedy` is a command or an action where there is one."""

    name: str
    grade: Grade
    text: str
    remedy: str = ""


def fine(name: str, text: str) -> Finding:
    """Return that nothing is wrong."""
    return Finding(name=name, grade=Grade.FINE, text=text)


def note(name: str, text: str, remedy: str = "") -> Finding:
    """Return what a server does without."""
    return Finding(name=name, grade=Grade.NOTE, text=text, remedy=remedy)


def bad(name: str, text: str, remedy: str) -> Finding:
    """Return what a server cannot do without."""
    return Finding(name=name, grade=Grade.BAD, text=text, remedy=remedy)
